"""A fitted step is what a jitted function is: donated to, cached, lowered, serialised, compiled again."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import serialize_executable

import recoup

W = 0.1 * jax.random.normal(jax.random.key(0), (6, 48, 48))
X = jax.random.normal(jax.random.key(1), (512, 48))


def step(w: Any, x: Any) -> Any:
    def loss(w):
        h = x
        for p in w:
            h = h + jnp.tanh(jnp.sin(h @ p))
        return jnp.mean(h * h)

    value, grads = jax.value_and_grad(loss)(w)
    return w - 0.1 * grads, value


@pytest.fixture(scope="module")
def fitted() -> recoup.Fitted:
    return recoup.fit(step, W, X, budget="65%", donate_argnums=0)


def same(a: Any, b: Any) -> bool:
    return all(jnp.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_lowered_and_compiled_again_it_is_as_small(fitted: recoup.Fitted) -> None:
    again = fitted.jitted.lower(W, X).compile()
    stats = again.memory_analysis()
    assert stats.temp_size_in_bytes == fitted.memory.temporaries_bytes
    assert stats.alias_size_in_bytes == fitted.memory.aliased_bytes > 0
    assert "optimization_barrier" in fitted.jitted.lower(W, X).as_text()


def test_exported_and_loaded_it_computes_the_same(fitted: recoup.Fitted) -> None:
    blob = jax.export.export(fitted.jitted)(W, X).serialize()
    loaded = jax.export.deserialize(blob)
    assert same(loaded.call(W + 0, X), jax.jit(step)(W, X))


def test_the_executable_is_serialised(fitted: recoup.Fitted) -> None:
    loaded = serialize_executable.deserialize_and_load(*serialize_executable.serialize(fitted.compiled))
    assert same(loaded(W + 0, X), fitted(W + 0, X))


def test_the_compilation_cache_serves_a_second_fit(tmp_path: Path) -> None:
    hits: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update(names[0], str(tmp_path))
    jax.config.update(names[1], 0)
    jax.experimental.compilation_cache.compilation_cache.reset_cache()
    try:
        recoup.fit(step, W, X, budget="65%")
        assert "/jax/compilation_cache/cache_hits" not in hits
        jax.clear_caches()
        again = recoup.fit(step, W, X, budget="65%")
        assert hits.count("/jax/compilation_cache/cache_hits") >= again.compiles
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        jax.experimental.compilation_cache.compilation_cache.reset_cache()
        jax.monitoring.clear_event_listeners()
