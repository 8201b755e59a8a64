"""Steps that reports are made of, small, and a picture full of hostile names."""

import jax
import jax.numpy as jnp

from recoup._report.picture import Buffer, Figure, Op, Picture, Rung, Strip

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    '"><b onmouseover="window.hacked = 1">',
    "{{data}} {{script}}",
    "a\u2028b\x00c & < > ' \\",
    "café 模型 __proto__",
)


def block(p, x):
    h = jnp.tanh(x @ p["w1"])
    h = jnp.tanh(h * h)
    return x + jnp.tanh(h @ p["w2"])


def shape(*dims):
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def mlp_step(params, x):
    def loss(params):
        h = x
        for i, p in enumerate(params):
            with jax.named_scope(f"layer_{i}"):
                h = block(p, h)
        return jnp.mean(h**2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def mlp_args(layers=6):
    return [{"w1": shape(32, 128), "w2": shape(128, 32)} for _ in range(layers)], shape(256, 32)


def scan_step(w, x):
    def body(h, w):
        a = jnp.sin(h @ w)
        return jnp.tanh(a @ w.T), None

    def loss(w):
        h, _ = jax.lax.scan(body, x, w)
        return jnp.sum(h**2)

    value, grads = jax.value_and_grad(loss)(w)
    return w - 0.1 * grads, value


def scan_args():
    return shape(8, 64, 256), shape(128, 64)


def picture_of(names=HOSTILE, operations=40, strips=2):
    """A picture with these names in every place that a program can name."""

    def name(i):
        return names[i % len(names)]

    def strip(title):
        ops = tuple(
            Op(name(i), name(i + 1), ("forward", "backward")[i * 2 // operations]) for i in range(operations)
        )
        buffers = tuple(
            Buffer(
                1024 * (1 + i % 7), i, min(operations - 1, i + 1 + i % 90), name(i), name(i + 1), name(i + 2),
                name(i + 3), ("kept", "recomputed", "forward", "backward", "other")[i % 5], i % 3 == 0,
                name(i + 4),
            )
            for i in range(operations)
        )  # fmt: skip
        return Strip(title, "memory model (predicted)", 10_000, 1, 2, 3, ops, buffers)

    decision = {
        "action": "recompute", "value": name(0), "bytes": 4096, "op": name(1), "source": name(2),
        "scope": name(3), "name": name(4), "use": name(5), "use_source": name(6), "recipe": [name(0)],
        "inputs": [name(1)],
        "flops": 10.0, "iterations": 0, "region": name(2),
    }  # fmt: skip
    residual = {
        "bytes": 512, "value": name(0), "kind": "computed", "op": name(1), "source": name(2),
        "scope": name(3), "name": name(4), "needed_by": name(5), "needed_by_source": name(0),
        "iterations": 3, "fused": True, "region": name(3),
    }  # fmt: skip
    occupant = {
        "bytes": 64, "size_bytes": 64, "offset_bytes": 0, "instruction": name(0), "op": name(1),
        "value": name(2), "source": name(3), "scope": name(4), "role": "kept", "inferred": False,
        "region": name(5),
    }  # fmt: skip
    arena = {
        "temporaries_bytes": 64, "total_bytes": 128, "attributed_bytes": 64, "by_role": {"kept": 64},
        "occupants": [occupant], "moments_bytes": [0, 64, 32], "instrument": "compiled (buffer assignment)",
    }  # fmt: skip
    return Picture(
        title=name(0),
        headline=name(1) + " 12 MiB",
        figures=(
            Figure(name(2), 4096, "bytes", name(3), "predicted"),
            Figure("Extra", 0.1, "share", "x", "counted"),
        ),
        budget_bytes=30_000,
        bound_bytes=10_000,
        bound=name(4),
        flops=100.0,
        strips=tuple(strip(f"{name(5)} {k}") for k in range(strips)),
        curve=(
            Rung(9000, 9500, 10_000, 0.0),
            Rung(8000, 8500, 9000, 0.1, chosen=True),
            Rung(7000, 7500, 8000, 0.3),
        ),
        decisions=(decision, {**decision, "action": "keep", "bytes": 99}),
        residuals=(residual,),
        arenas={name(0): arena},
        notes=(name(1),),
        made_with={name(2): name(3)},
    )
