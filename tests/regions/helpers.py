"""What the region tests share: comparing gradients, counting executions, reading compiled programs."""

import jax
import numpy as np


def assert_same(a, b, **tolerance):
    """Two trees equal in structure and, by default, to the bit."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if tolerance:
            np.testing.assert_allclose(np.asarray(x), np.asarray(y), **tolerance)
        else:
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def compiled(fun, *args):
    return jax.jit(fun).lower(*args).compile()


def temporaries(fun, *args):
    """Bytes of the compiler's temporaries."""
    return compiled(fun, *args).memory_analysis().temp_size_in_bytes


def products(fun, *args):
    """Matrix products and convolutions in the compiled program."""
    text = compiled(fun, *args).as_text()
    return sum(text.count(op) for op in (" dot(", " convolution(", "custom-call(", "__onednn$matmul"))


def eqns(jaxpr):
    """All equations of a jaxpr, those of its bodies included."""
    for eqn in jaxpr.eqns:
        yield eqn
        for param in eqn.params.values():
            for body in param if isinstance(param, tuple | list) else (param,):
                if hasattr(body, "eqns"):
                    yield from eqns(body)


def names(fun, *args):
    """The operations of a function, with those inside calls and loops."""
    return [eqn.primitive.name for eqn in eqns(jax.make_jaxpr(fun)(*args).jaxpr)]


def region_eqns(fun, *args):
    return [e for e in eqns(jax.make_jaxpr(fun)(*args).jaxpr) if e.primitive.name == "recoup_region"]
