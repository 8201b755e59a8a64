"""Sharded steps and their arguments: SGD with momentum on residual blocks, divided in many ways."""

import functools
from typing import Any

LAYERS = 6
ROWS, WIDTH = 4096, 64
FEW_ROWS, WIDE = 512, 128  # weights count beside activations

GATHERED = ("constrained", "map_gathered", "map_gathered_outside")


def make(case: str) -> Any:
    """A step, its arguments on a mesh, and the options of `fit` and `jit`."""
    import jax
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    data, model = {"tensor": (2, 4), "map_tensor": (2, 4), "data_and_tensor": (4, 2)}.get(case, (8, 1))
    kind = AxisType.Explicit if case == "map_twice" else AxisType.Auto
    mesh = jax.make_mesh((data, model), ("data", "model"), axis_types=(kind,) * 2)
    put = lambda tree, spec: jax.tree.map(lambda x: _put(x, NamedSharding(mesh, _fit(spec, x))), tree)
    params, state, x, y = arrays(case)
    rows = P("data")
    how: dict[str, Any] = {}
    chosen: Any = step
    if case == "data":
        args = put((params, state), P()), put((x, y), rows)
    elif case in ("fsdp", "donated", "constrained"):
        # weights, gradients and optimizer state in shards; weights are gathered where they are used
        args = put((params, state), P("data")), put((x, y), rows)
        how = {"donate_argnums": (0, 1)} if case == "donated" else {}
        gather = NamedSharding(mesh, P()) if case == "constrained" else None
        chosen = functools.partial(step, keep=NamedSharding(mesh, rows), gather=gather)
    elif case == "optimizer_state":
        args = (put(params, P()), put(state, P("data"))), put((x, y), rows)
    elif case in ("tensor", "data_and_tensor"):
        split = lambda tree: [
            {"up": put(p["up"], P(None, "model")), "down": put(p["down"], P("model", None))} for p in tree
        ]
        args = (split(params), split(state)), put((x, y), rows)
    else:
        chosen, specs = mapped(case, mesh)
        args = (_each(put, params, specs), _each(put, state, specs)), put((x, y), rows)
    (params, state), (x, y) = args
    return chosen, (params, state, x, y), how


def _each(put: Any, tree: Any, specs: Any) -> Any:
    """`put` with a tree of specs, or one for all."""
    if isinstance(specs, list):
        return [_each(put, part, spec) for part, spec in zip(tree, specs, strict=True)]
    if isinstance(specs, dict):
        return {name: put(tree[name], spec) for name, spec in specs.items()}
    return put(tree, specs)


def _fit(spec: Any, x: Any) -> Any:
    return type(spec)(*spec[: x.ndim])


def _put(x: Any, sharding: Any) -> Any:
    import jax

    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def arrays(case: str) -> Any:
    """Host arrays: the same in every process."""
    import numpy as np

    rows, width = (
        ((4 if case == "constrained" else 1) * FEW_ROWS, WIDE) if case in GATHERED else (ROWS, WIDTH)
    )
    draw = np.random.default_rng(0)
    normal = lambda *shape: (draw.standard_normal(shape) / 8).astype(np.float32)
    params: Any = [{"up": normal(width, 2 * width), "down": normal(2 * width, width)} for _ in range(LAYERS)]
    if case == "map_scan":
        params = {name: np.stack([p[name] for p in params]) for name in ("up", "down")}
        state: Any = {name: np.zeros_like(p) for name, p in params.items()}
    else:
        state = [{k: np.zeros_like(v) for k, v in p.items()} for p in params]
    return params, state, normal(rows, width), normal(rows, width)


def block(x: Any, p: Any, total: Any = lambda x: x) -> Any:
    """`total` adds up what the parts of `down` give."""
    import jax
    import jax.numpy as jnp

    return x + jnp.tanh(total(jax.nn.gelu(x @ p["up"]) @ p["down"]))


def loss_fn(params: Any, x: Any, y: Any, keep: Any = None, gather: Any = None) -> Any:
    import jax
    import jax.numpy as jnp

    if isinstance(params, dict):
        params = [{name: params[name][i] for name in params} for i in range(LAYERS)]
    for p in params:
        if gather is not None:
            p = {name: jax.lax.with_sharding_constraint(w, gather) for name, w in p.items()}
        if keep is not None:
            x = jax.lax.with_sharding_constraint(x, keep)
        x = block(x, p)
    return jnp.mean((x - y) ** 2)


def update(params: Any, state: Any, grads: Any) -> Any:
    import jax

    state = jax.tree.map(lambda m, g: 0.9 * m + g, state, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, state), state


def step(params: Any, state: Any, x: Any, y: Any, keep: Any = None, gather: Any = None) -> Any:
    """`keep`: the sharding of activations, where the compiler should not choose it; `gather`: of weights
    where they are used."""
    import jax

    loss, grads = jax.value_and_grad(loss_fn)(params, x, y, keep, gather)
    if gather is not None:
        grads = jax.tree.map(lambda g: jax.lax.with_sharding_constraint(g, keep), grads)
    return *update(params, state, grads), loss


def mapped(case: str, mesh: Any) -> Any:
    """The step with its model in `shard_map`, and how its weights are divided."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import PartitionSpec as P

    rows = P("data")
    own = {"map_tensor": {"up": P(None, "model"), "down": P("model", None)}}
    one = own.get(
        case, P("data") if case in ("map_fsdp", "map_fsdp_outside", "map_twice", *GATHERED) else P()
    )
    specs: Any = {"up": P(None, "data"), "down": P(None, "data")} if case == "map_scan" else one
    if case == "map_tensor":
        specs = [one] * LAYERS
    full = lambda p: {name: lax.all_gather(w, "data", tiled=True) for name, w in p.items()}

    if case == "map_twice":
        return _twice(mesh), specs

    def local_loss(params: Any, x: Any, y: Any) -> Any:
        if case == "map_scan":
            x, _ = lax.scan(lambda x, p: (block(x, full(p)), None), x, params)
            return jnp.mean((x - y) ** 2)
        for p in params:
            if case == "map_tensor":
                x = block(x, p, lambda part: lax.psum(part, "model"))
            else:
                x = block(x, p if specs == P() else full(p))
        return jnp.mean((x - y) ** 2)

    if case.endswith("outside"):
        whole = jax.shard_map(
            lambda params, x, y: lax.pmean(local_loss(params, x, y), "data"),
            mesh=mesh, in_specs=(specs, rows, rows), out_specs=P(),
        )  # fmt: skip

        def outside(params: Any, state: Any, x: Any, y: Any) -> Any:
            loss, grads = jax.value_and_grad(whole)(params, x, y)
            return *update(params, state, grads), loss

        return outside, specs

    def local(params: Any, state: Any, x: Any, y: Any) -> Any:
        if case == "map_accumulate":
            parts = [a.reshape(4, -1, a.shape[-1]) for a in (x, y)]

            def micro(total: Any, part: Any) -> Any:
                loss, grads = jax.value_and_grad(local_loss)(params, *part)
                return jax.tree.map(jnp.add, total, grads), loss

            grads, losses = lax.scan(micro, jax.tree.map(jnp.zeros_like, params), tuple(parts))
            grads, loss = jax.tree.map(lambda g: g / 4, grads), losses.mean()
        else:
            loss, grads = jax.value_and_grad(local_loss)(params, x, y)
        if checked:  # the derivative of what all devices hold, or gather, is added up over them already
            grads = jax.tree.map(lambda g: g / mesh.shape["data"], grads)
        else:
            grads = jax.tree.map(lambda g: lax.pmean(g, "data"), grads)
        return *update(params, state, grads), lax.pmean(loss, "data")

    checked = case not in ("map_unchecked", "map_accumulate")
    fun = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(specs, specs, rows, rows),
        out_specs=(specs, specs, P()),
        check_vma=checked,
    )
    return fun, specs


def _twice(mesh: Any) -> Any:
    """Half of the layers in one `shard_map`, half in another, the loss outside. Both read a number that each
    device has for itself."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import PartitionSpec as P

    parts = P("data")

    def half(params: Any, x: Any) -> Any:
        one = 1.0 + 0.0 * jnp.max(x)
        for p in params:
            full = {name: lax.all_gather(w, "data", tiled=True) for name, w in p.items()}
            x = one * block(x, full)
        return x

    run = jax.shard_map(half, mesh=mesh, in_specs=(parts, parts), out_specs=parts)

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        x = jnp.clip(run(params[: LAYERS // 2], x), -1e6, 1e6)
        return jnp.mean((run(params[LAYERS // 2 :], x) - y) ** 2)

    def twice(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        return *update(params, state, grads), loss

    return twice


def one_device(case: str) -> Any:
    """The step's results computed on one device of this process."""
    import jax

    device = jax.local_devices()[0]
    args = jax.device_put(arrays(case), device)
    return jax.tree.map(jax.device_get, jax.jit(step)(*args))
