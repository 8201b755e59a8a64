"""What regions are for: the compiled arena, measured alone in a process, and exact results."""

import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
    import sys
    import jax, jax.numpy as jnp
    import numpy as np
    import recoup

    BATCH, WIDTH, HIDDEN, BLOCKS = {sizes}

    def block(x, w1, w2):
        h = jnp.tanh(x @ w1)
        h = jnp.tanh(h * h)
        return x + jnp.tanh(h @ w2)

    def step(f, argnums):
        def loss(params, x):
            for w1, w2 in params:
                x = f(x, w1, w2)
            return jnp.sum(x ** 2)
        return jax.jit(jax.value_and_grad(loss, argnums))

    key = jax.random.key(0)
    keys = jax.random.split(key, 2 * BLOCKS)
    params = [
        (jax.random.normal(a, (WIDTH, HIDDEN)) * 0.05, jax.random.normal(b, (HIDDEN, WIDTH)) * 0.05)
        for a, b in zip(keys[::2], keys[1::2])
    ]
    x = jax.random.normal(key, (BATCH, WIDTH))
    for argnums in ((0, 1), 0, 1):
        plain, ours = (step(f, argnums).lower(params, x).compile() for f in (block, recoup.checkpoint(block)))
        for a, b in zip(jax.tree.leaves(plain(params, x)), jax.tree.leaves(ours(params, x))):
            assert np.array_equal(a, b), "results differ"
        sizes = [c.memory_analysis().temp_size_in_bytes for c in (plain, ours)]
        dots = [c.as_text().count(" dot(") + c.as_text().count("__onednn$matmul") for c in (plain, ours)]
        print(argnums, sizes[1] / sizes[0], dots[1] - dots[0], flush=True)
"""


def _run(sizes):
    code = textwrap.dedent(SCRIPT.format(sizes=sizes))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.rsplit(" ", 2) for line in done.stdout.strip().splitlines()]
    return [(float(share), int(more)) for _, share, more in rows]


def _check(rows, blocks, share):
    assert len(rows) == 3
    for got, more in rows:
        assert got <= share
        # Both products of a block are read by its backward; none merged away, none done twice.
        assert more == 2 * blocks


def test_e2_an_eight_block_mlp_alone_in_its_process():
    """A quarter of the rows: the same shares as at full size, in a fraction of the time."""
    _check(_run((1024, 256, 1024, 8)), 8, 0.27)


@pytest.mark.slow
def test_e2_at_full_size():
    _check(_run((4096, 256, 1024, 8)), 8, 0.27)
