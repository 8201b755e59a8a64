"""`largest`: the size it returns fits and the next does not, whatever the sizes; few compilations."""

import jax
import jax.numpy as jnp
import pytest

import recoup
from recoup import _largest


def make(size, width=32, layers=2):
    def loss(weights, x):
        for w in weights:
            x = x + jnp.tanh(jnp.tanh(x @ w) @ w.T)
        return jnp.mean(x * x)

    def step(weights, x):
        value, grads = jax.value_and_grad(loss)(weights, x)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], value

    weights = [jax.ShapeDtypeStruct((width, width), jnp.float32)] * layers
    return step, (weights, jax.ShapeDtypeStruct((size, width), jnp.float32))


def test_neighbours_decide_and_compilations_are_few():
    multiple_of = 7
    found = recoup.largest(
        make, budget="512KiB", donate_argnums=0, multiple_of=multiple_of, tolerance=0, max_compiles=24
    )
    assert found.size % multiple_of == 0
    assert found.smallest_refused == found.size + multiple_of
    assert found.fitted.memory.total_bytes <= 2**19
    assert found.compiles <= 20
    assert found.unplanned_size < found.size
    step, args = make(found.smallest_refused)
    with pytest.raises(recoup.BudgetError):
        recoup.fit(step, *args, budget="512KiB", donate_argnums=0, max_compiles=2)
    # the result is the step, and the size is not that of a power of two by luck
    weights, value = found.fitted([jnp.ones((32, 32)) for _ in range(2)], jnp.ones((found.size, 32)))
    assert jnp.isfinite(value)
    assert len(weights) == 2
    text = str(found)
    assert str(found.size) in text
    assert max(map(len, text.splitlines())) <= 80


def test_dear_plans_are_refused():
    cheap = recoup.largest(make, budget="512KiB", max_overhead=0.05, tolerance=0.05)
    dear = recoup.largest(make, budget="512KiB", tolerance=0.05)
    assert cheap.plan.overhead <= 0.05
    assert cheap.size < dear.size


def test_nothing_fits():
    with pytest.raises(recoup.BudgetError, match=r"size 1 does not fit into .*it is the smallest"):
        recoup.largest(make, budget="8KiB")
    with pytest.raises(recoup.BudgetError, match="size 4096 does not fit"):
        recoup.largest(make, budget="512KiB", minimum=4096)


def test_everything_fits():
    found = recoup.largest(make, budget="64MiB", minimum=3, maximum=50, multiple_of=4)
    assert (found.size, found.smallest_refused) == (48, None)
    assert found.compiles <= 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": "60%"}, "not the share"),
        ({"budget": "1MiB", "minimum": 9, "maximum": 10, "multiple_of": 4}, "no multiple of 4"),
        ({"budget": "1MiB", "multiple_of": 0}, "no multiple of 0"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        recoup.largest(make, **arguments)


class Line:
    """Sizes whose bytes are a function, in place of compilations."""

    def __init__(self, limit, planned, compiled):
        self.limit, self._planned, self._compiled = limit, planned, compiled
        self.planned, self.unplanned, self.totals, self.compiles = {}, {}, {}, 0

    def predict(self, at):
        self.planned[at], self.unplanned[at] = self._planned(at), 3 * self._planned(at)
        return self.planned[at]

    def measure(self, at):
        self.predict(at)
        self.compiles += 1
        self.totals[at] = self._compiled(at)
        return self.totals[at]


@pytest.mark.parametrize(
    "compiled",
    [
        lambda n: 1000 + 70 * n,
        lambda n: 1300 + 91 * n,  # the model is 30 % too low
        lambda n: 900 + 49 * n,
        lambda n: 1000 + 70 * n + 500 * (n % 3),  # jumps
        lambda n: 1000 + n * n // 4,  # quadratic, as attention in its length
        lambda n: 5000,
    ],
)
@pytest.mark.parametrize("limit", [900, 5000, 70_000, 1_234_567])
def test_search_on_any_line(compiled, limit):
    sizes = Line(limit, lambda n: 1000 + 70 * n, compiled)
    guess, plain = _largest._predicted(sizes, 1, 100_000)
    assert 0 <= plain <= guess <= 100_000
    fitting, refused = _largest._certified(sizes, guess, 1, 100_000, 0.0, 64)
    if fitting:
        assert compiled(fitting) <= limit
    if refused <= 100_000:
        assert compiled(refused) > limit
        assert refused - fitting <= 1 or sizes.compiles == 64
    assert sizes.compiles <= 40
