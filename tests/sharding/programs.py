"""Sharded steps, fitted, and what came of it as JSON: run in a child process, which alone sets its devices.

python -m tests.sharding.programs CASE...                  # on 8 virtual devices
python -m tests.sharding.programs CASE... --rank R --port P   # as one of two processes with 4 devices each
"""

import argparse
import functools
import json
import os
import re
import sys
from typing import Any

ROWS, WIDTH, LAYERS = 4096, 64, 6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    processes = 1 if options.rank is None else 2
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={8 // processes}"
    import jax

    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{options.port}", processes, options.rank)
    found = {case: _run(case) for case in options.cases}
    if not options.rank:
        json.dump(found, sys.stdout)


def _run(case: str) -> dict[str, Any]:
    import jax
    import numpy as np

    import recoup

    step, args, how = make(case)
    # In `shard_map` nothing is planned: such a step only has to come back as it is.
    fitted = recoup.fit(step, *args, budget="100%" if case == "shard_map" else "75%", **how)
    plain = jax.jit(step, **how).lower(*args).compile(compiler_options=_options())
    found: dict[str, Any] = {
        "devices": jax.device_count(),
        "compiled": fitted.memory.total_bytes,
        "predicted": fitted.plan.peak_bytes,
        "budget": fitted.plan.budget_bytes,
        "plain": fitted.unplanned_memory.total_bytes,
        "unchanged": fitted.plan.changes_nothing,
        "overhead": fitted.plan.overhead,
        "collectives": [collectives(plain.as_text()), collectives(fitted.compiled.as_text())],
    }
    copies = jax.tree.map(lambda x: x + 0, args) if how.get("donate_argnums") else args
    a, b = plain(*copies), fitted(*args)
    found["shardings"] = [
        x.sharding.is_equivalent_to(y.sharding, x.ndim)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    ]
    alone = one_device(case)
    differences = []
    for x, y, z in zip(jax.tree.leaves(a), jax.tree.leaves(b), jax.tree.leaves(alone), strict=True):
        for shard, other in zip(x.addressable_shards, y.addressable_shards, strict=True):
            want = np.asarray(z)[other.index]
            scale = max(float(np.abs(np.asarray(z)).max()), 1e-30)
            differences.append(float(np.abs(np.asarray(shard.data) - np.asarray(other.data)).max()) / scale)
            differences.append(float(np.abs(np.asarray(other.data) - want).max()) / scale)
    found["difference"] = max(differences)
    return found


def _options() -> dict[str, str]:
    from recoup import _barrier, _compat

    return dict(_barrier.FENCE_OPTIONS) if _compat.BARRIERS_NEED_OPTION else {}


def collectives(text: str) -> dict[str, int]:
    """How many of each collective a compiled program has."""
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
    return {k: n for k in kinds if (n := len(re.findall(rf" {k}(?:-start)?\(", text)))}


def make(case: str) -> Any:
    """A step, its arguments on a mesh, and the options of `fit` and `jit`."""
    import jax
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    data, model = {"tensor": (2, 4), "data_and_tensor": (4, 2)}.get(case, (8, 1))
    mesh = jax.make_mesh((data, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    put = lambda tree, spec: jax.tree.map(lambda x: _put(x, NamedSharding(mesh, _fit(spec, x))), tree)
    params, state, x, y = arrays()
    rows = P("data")
    how: dict[str, Any] = {}
    chosen: Any = step
    if case == "data":
        args = put((params, state), P()), put((x, y), rows)
    elif case in ("fsdp", "donated"):
        # weights, gradients and optimizer state in shards; weights are gathered where they are used
        args = put((params, state), P("data")), put((x, y), rows)
        how = {"donate_argnums": (0, 1)} if case == "donated" else {}
        chosen = functools.partial(step, keep=NamedSharding(mesh, rows))
    elif case == "optimizer_state":
        args = (put(params, P()), put(state, P("data"))), put((x, y), rows)
    elif case in ("tensor", "data_and_tensor"):
        split = lambda tree: [
            {"up": put(p["up"], P(None, "model")), "down": put(p["down"], P("model", None))} for p in tree
        ]
        args = (split(params), split(state)), put((x, y), rows)
    else:
        assert case == "shard_map"
        args = put((params, state), P()), put((x, y), rows)
        return _mapped(mesh), (*args[0], *args[1]), how
    (params, state), (x, y) = args
    return chosen, (params, state, x, y), how


def _fit(spec: Any, x: Any) -> Any:
    return type(spec)(*spec[: x.ndim])


def _put(x: Any, sharding: Any) -> Any:
    import jax

    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def arrays() -> Any:
    """Host arrays: the same in every process."""
    import numpy as np

    draw = np.random.default_rng(0)
    normal = lambda *shape: (draw.standard_normal(shape) / 8).astype(np.float32)
    params = [{"up": normal(WIDTH, 2 * WIDTH), "down": normal(2 * WIDTH, WIDTH)} for _ in range(LAYERS)]
    state = [{k: np.zeros_like(v) for k, v in p.items()} for p in params]
    return params, state, normal(ROWS, WIDTH), normal(ROWS, WIDTH)


def loss_fn(params: Any, x: Any, y: Any, keep: Any = None) -> Any:
    import jax
    import jax.numpy as jnp

    for p in params:
        if keep is not None:
            x = jax.lax.with_sharding_constraint(x, keep)
        x = x + jnp.tanh(jax.nn.gelu(x @ p["up"]) @ p["down"])
    return jnp.mean((x - y) ** 2)


def step(params: Any, state: Any, x: Any, y: Any, keep: Any = None) -> Any:
    """SGD with momentum. `keep`: the sharding of activations, where the compiler should not choose it."""
    import jax

    loss, grads = jax.value_and_grad(loss_fn)(params, x, y, keep)
    state = jax.tree.map(lambda m, g: 0.9 * m + g, state, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, state), state, loss


def _mapped(mesh: Any) -> Any:
    """The forward pass alone in `shard_map`; gradient and update are outside."""
    import jax
    from jax.sharding import PartitionSpec as P

    def local(params: Any, x: Any, y: Any) -> Any:
        return jax.lax.pmean(loss_fn(params, x, y), "data")

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=P())

    def mapped_step(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(mapped)(params, x, y)
        state = jax.tree.map(lambda m, g: 0.9 * m + g, state, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, state), state, loss

    return mapped_step


def one_device(case: str) -> Any:
    """The step's results computed on one device of this process."""
    import jax

    device = jax.local_devices()[0]
    args = jax.device_put(arrays(), device)
    return jax.tree.map(jax.device_get, jax.jit(step)(*args))


if __name__ == "__main__":
    main()
