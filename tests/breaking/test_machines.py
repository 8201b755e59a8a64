"""The step planner's machine and the value numbering catch every kind of illegal plan: each mutation of a
legal one is refused or shows in its numbers."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recoup import _ladder
from recoup._compat import Literal, Var
from recoup._inline import Flat
from recoup._planner.machine import execute
from recoup._trace import NEVER_REPEATED, trace
from recoup._verify import verify
from recoup.errors import PlanError

WEIGHTS = [0.2 * jax.random.normal(jax.random.key(i), (32, 32)) for i in range(5)]


def noisy(weights: Any, x: Any, key: Any) -> Any:
    """Dropout and an effect in each layer."""

    def loss(weights: Any) -> Any:
        h = x
        for i, w in enumerate(weights):
            mask = jax.random.bernoulli(jax.random.fold_in(key, i), 0.8, h.shape)
            h = jnp.where(mask, jnp.tanh(jnp.tanh(h @ w) * 2.0), jnp.zeros_like(h))
            jax.debug.callback(lambda _: None, h[0, 0])
        return jnp.mean(h * h)

    return jax.value_and_grad(loss)(weights)


@functools.cache
def ladder() -> Any:
    traced = trace(noisy, (WEIGHTS, jnp.ones((512, 32)), jax.random.key(0)))
    return _ladder.build(traced)


def rungs() -> list[Any]:
    return [s for s in ladder().steps if len(s.rung.schedule) > len(s.variant.program.ops)]


# -- the step planner's machine ---------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_step_machine_refuses_mutations(data: Any) -> None:
    step = data.draw(st.sampled_from(rungs()))
    program, window, schedule = step.variant.program, step.variant.layout.window, list(step.rung.schedule)
    honest = execute(program, schedule, window)
    assert (honest.peak_bytes, honest.cost) == (step.rung.peak_bytes, step.rung.cost)
    kind = data.draw(st.sampled_from(["drop", "swap", "early", "effect"]))
    at = data.draw(st.integers(0, len(program.ops) - 1))
    if kind == "drop":  # an operation never runs
        schedule = [o for o in schedule if o != at]
    elif kind == "swap":  # first computations leave their order
        assume(at + 1 < len(program.ops))
        i, j = schedule.index(at), schedule.index(at + 1)
        schedule[i], schedule[j] = schedule[j], schedule[i]
    elif kind == "early":  # a value is read before anything computed it
        assume(any(program.values[v].producer >= 0 for v in program.ops[at].reads))
        schedule.remove(at)
        schedule.insert(0, at)
    else:  # what may run only once runs again
        once = [i for i, op in enumerate(program.ops) if not op.pure]
        schedule.append(data.draw(st.sampled_from(once)))
    with pytest.raises(PlanError):
        execute(program, schedule, window)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_changed_recomputation_shows_in_cost_or_peak(data: Any) -> None:
    """Leaving a recomputation out holds its value (more bytes, or fewer FLOPs); none can be smuggled in."""
    step = data.draw(st.sampled_from(rungs()))
    program, window, schedule = step.variant.program, step.variant.layout.window, list(step.rung.schedule)
    seen: set[int] = set()
    repeats = [i for i, o in enumerate(schedule) if o in seen or seen.add(o)]
    at = data.draw(st.sampled_from(repeats))
    changed = schedule[:at] + schedule[at + 1 :] if data.draw(st.booleans()) else [*schedule, schedule[at]]
    run = execute(program, changed, window)
    assert run.cost != step.rung.cost or program.ops[schedule[at]].cost == 0


# -- the rewritten program --------------------------------------------------------------------------------


def mutated(flat: Flat, at: int, **change: Any) -> Flat:
    eqns = list(flat.eqns)
    eqns[at] = eqns[at].replace(**change)
    return replace(flat, eqns=tuple(eqns))


def test_rewritten_programs_are_proved_equal() -> None:
    assert len(rungs()) > 5
    for step in ladder().steps:
        verify(step.variant.flat, step.flat, NEVER_REPEATED)


def places(flat: Flat, name: str, marked: bool) -> list[int]:
    return [
        i
        for i, e in enumerate(flat.eqns)
        if e.primitive.name == name and ("recoup_recompute" in str(e.source_info.name_stack)) == marked
    ]


def lowest_with(name: str) -> tuple[Any, list[int]]:
    for step in reversed(rungs()):
        found = places(step.flat, name, True)
        if found:
            return step, found
    raise AssertionError(f"no rung recomputes {name}")


def test_a_draw_with_another_key_is_caught() -> None:
    step, again = lowest_with("random_bits")
    flat = step.flat
    keys = [e.invars[0] for e in flat.eqns if e.primitive.name == "random_bits"]
    mine = flat.eqns[again[0]].invars[0]
    # another key that exists by then
    written = {v for e in flat.eqns[: again[0]] for v in e.outvars} | set(flat.invars)
    other = next(k for k in keys if k is not mine and k in written and k not in aliases(flat, mine))
    with pytest.raises(PlanError, match=r"another value: \w+ at .*test_machines\.py:\d+$"):
        verify(step.variant.flat, mutated(flat, again[0], invars=[other]), NEVER_REPEATED)


def aliases(flat: Flat, v: Any) -> set[Any]:
    """What stands for `v` through barriers, both ways."""
    known = {v}
    for _ in range(3):
        for e in flat.eqns:
            if e.primitive.name == "recoup_barrier":
                for a, b in zip(e.invars, e.outvars, strict=True):
                    if not isinstance(a, Literal) and (a in known or b in known):
                        known |= {a, b}
    return known


def test_a_repeated_or_a_lost_effect_is_caught() -> None:
    step = rungs()[-1]
    flat = step.flat
    at = places(flat, "debug_callback", False)
    assert len(at) == len(WEIGHTS)
    twice = replace(flat, eqns=(*flat.eqns, flat.eqns[at[0]]))
    lost = replace(flat, eqns=tuple(e for i, e in enumerate(flat.eqns) if i != at[0]))
    swapped = list(flat.eqns)
    swapped[at[0]], swapped[at[1]] = swapped[at[0]].replace(invars=swapped[at[1]].invars), swapped[at[0]]
    for wrong in (twice, lost):
        with pytest.raises(PlanError, match="only once"):
            verify(step.variant.flat, wrong, NEVER_REPEATED)
    with pytest.raises(PlanError):
        verify(step.variant.flat, replace(flat, eqns=tuple(swapped)), NEVER_REPEATED)
    # the last one lost, and all of them: each side's operations are named, in order
    five, four = (", ".join(["debug_callback"] * n) for n in (5, 4))
    for gone, left in ((at[-1:], four), (at, "nothing")):
        some = replace(flat, eqns=tuple(e for i, e in enumerate(flat.eqns) if i not in gone))
        with pytest.raises(PlanError, match=f"run as {left} in the rewritten program, for {five} in the"):
            verify(step.variant.flat, some, NEVER_REPEATED)
        if left == "nothing":
            with pytest.raises(
                PlanError, match=f"run as {five} in the rewritten program, for nothing in the"
            ):
                verify(some, flat, NEVER_REPEATED)


def test_what_may_run_only_once_by_its_name() -> None:
    """An operation without an effect, such as an exchange between devices, that the caller lists."""
    step, again = lowest_with("tanh")
    assert again
    verify(step.variant.flat, step.flat, frozenset())
    with pytest.raises(PlanError, match="only once run as tanh, tanh"):
        verify(step.variant.flat, step.flat, frozenset(["tanh"]))
    verify(step.variant.flat, step.variant.flat, frozenset(["tanh"]))


A, B = jnp.arange(12.0).reshape(3, 4), jnp.ones((3, 4))


def with_constants(x: Any) -> Any:
    left, right = jnp.sort(x * A, 0), jnp.sort(x * B, 0)
    return left + 2.0 * right, jax.lax.top_k(x, 2)[0], jnp.float32(7.0)


def test_constants_numbers_and_parts_are_told_apart() -> None:
    """Two constants of one type, two numbers, two results of one operation, a result that is a number."""
    flat = trace(with_constants, (B,)).flat
    verify(flat, flat, frozenset())
    if len(flat.constvars) == 2:
        with pytest.raises(PlanError, match=r"result 0 .* another value: mul"):
            verify(flat, replace(flat, constvars=flat.constvars[::-1]), frozenset())
        with pytest.raises(PlanError, match="other arguments"):
            fewer = replace(flat, constvars=flat.constvars[:1], consts=flat.consts[:1])
            verify(flat, fewer, frozenset())
    (at,) = [i for i, e in enumerate(flat.eqns) if any(isinstance(v, Literal) for v in e.invars)]
    eqn = flat.eqns[at]
    (where,) = [k for k, v in enumerate(eqn.invars) if isinstance(v, Literal)]
    for value, aval in ((3.0, eqn.invars[where].aval), (2.0, jax.typeof(jnp.int32(2)))):
        changed = [*eqn.invars]
        changed[where] = Literal(np.asarray(value, aval.dtype), aval)
        with pytest.raises(PlanError, match=r"result 0 .* another value: mul at"):
            verify(flat, mutated(flat, at, invars=changed), frozenset())
    (top,) = [i for i, e in enumerate(flat.eqns) if e.primitive.name == "top_k"]
    values, indices = flat.eqns[top].outvars
    with pytest.raises(PlanError, match="result 1 of the rewritten program is another value: its operands m"):
        verify(flat, mutated(flat, top, outvars=[indices, values]), frozenset())
    # the same operation with other parameters is another one
    other = mutated(flat, top, params=dict(flat.eqns[top].params))
    with pytest.raises(PlanError, match=r"result 1 .* another value: top_k"):
        verify(flat, other, frozenset())
    # an earlier value, a later one, and two of which the first is named
    first, second, third = flat.outvars
    for outs, named in (((first,) * 2, 1), ((second,) * 2, 0), ((second, first), 0)):
        with pytest.raises(PlanError, match=rf"result {named} .* another value: its operands moved"):
            verify(flat, replace(flat, outvars=(*outs, third)), frozenset())
    with pytest.raises(PlanError, match=r"result 2 .* another value"):
        number = Literal(np.float32(8.0), jax.typeof(jnp.float32(8.0)))
        verify(flat, replace(flat, outvars=(*flat.outvars[:2], number)), frozenset())


def test_a_value_read_before_it_is_written_or_written_twice_is_caught() -> None:
    step = rungs()[-1]
    flat = step.flat
    with pytest.raises(PlanError, match="before it is written"):
        verify(step.variant.flat, replace(flat, eqns=flat.eqns[5:]), NEVER_REPEATED)
    with pytest.raises(PlanError, match="before it is written"):
        verify(step.variant.flat, replace(flat, eqns=flat.eqns[:-5]), NEVER_REPEATED)
    pure = next(e for e in flat.eqns if not e.effects)
    with pytest.raises(PlanError, match="written already"):
        verify(step.variant.flat, replace(flat, eqns=(*flat.eqns, pure)), NEVER_REPEATED)
    with pytest.raises(PlanError, match="other arguments"):
        verify(step.variant.flat, replace(flat, invars=flat.invars[::-1]), NEVER_REPEATED)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_operand_exchanged_for_another_value_is_caught(data: Any) -> None:
    """Every operation of a rewritten program matters: another operand anywhere changes a result."""
    step = data.draw(st.sampled_from(rungs()))
    flat = step.flat
    at = data.draw(st.integers(0, len(flat.eqns) - 1))
    eqn = flat.eqns[at]
    assume(eqn.primitive.name != "recoup_barrier" and matters(flat, at))
    position = data.draw(st.integers(0, len(eqn.invars) - 1))
    mine = eqn.invars[position]
    assume(not isinstance(mine, Literal))
    same = aliases(flat, mine)
    written = [*flat.invars, *(v for e in flat.eqns[:at] for v in e.outvars)]
    others = [v for v in written if v not in same and str(v.aval) == str(mine.aval)]
    assume(others)
    # a recomputation of the same value is the same value
    other = data.draw(st.sampled_from(others))
    invars = [*eqn.invars[:position], other, *eqn.invars[position + 1 :]]
    ours = mutated(flat, at, invars=invars)
    try:
        verify(step.variant.flat, ours, NEVER_REPEATED)
    except PlanError:
        return
    # Accepted: then it must be another name of the same value, a recomputation of it.
    numbers: dict[str, int] = {}
    assert fingerprint(flat, mine, numbers) == fingerprint(ours, other, numbers)


def matters(flat: Flat, at: int) -> bool:
    """Whether a result or an effect depends on an equation, one element of a barrier at a time."""
    needed = {v for v in flat.outvars if not isinstance(v, Literal)}
    for i in range(len(flat.eqns) - 1, at, -1):
        e = flat.eqns[i]
        if e.primitive.name == "recoup_barrier":
            pairs = zip(e.invars, e.outvars, strict=True)
            needed |= {a for a, b in pairs if b in needed and not isinstance(a, Literal)}
        elif e.effects or any(v in needed for v in e.outvars):
            needed |= {v for v in e.invars if not isinstance(v, Literal)}
    return bool(flat.eqns[at].effects) or any(v in needed for v in flat.eqns[at].outvars)


def fingerprint(flat: Flat, wanted: Any, numbers: dict[str, int]) -> int:
    """A number for the expression that a variable stands for: a second, naive numbering."""
    texts: dict[Any, int] = {}

    def name(v: Any) -> int:  # a literal has one number, read directly or through a barrier
        return numbers.setdefault(f"{v.val}:{v.aval}", len(numbers)) if isinstance(v, Literal) else texts[v]

    for kind, row in (("const", flat.constvars), ("arg", flat.invars)):
        for i, v in enumerate(row):
            texts[v] = numbers.setdefault(f"{kind}{i}", len(numbers))
    for e in flat.eqns:
        if e.primitive.name == "recoup_barrier":
            for a, b in zip(e.invars, e.outvars, strict=True):
                texts[b] = name(a)
            continue
        key = f"{e.primitive}{id(e.params)}({','.join(str(name(v)) for v in e.invars)})"
        for i, v in enumerate(e.outvars):
            texts[v] = numbers.setdefault(f"{key}.{i}", len(numbers))
    return texts[wanted]


def test_a_lost_result_is_caught() -> None:
    step = rungs()[0]
    outs = step.flat.outvars
    with pytest.raises(PlanError, match=r"result 0 .* another value"):
        verify(step.variant.flat, replace(step.flat, outvars=(outs[1], *outs[1:])), NEVER_REPEATED)
    with pytest.raises(PlanError, match="other arguments or results"):
        verify(step.variant.flat, replace(step.flat, outvars=outs[:-1]), NEVER_REPEATED)
    verify(step.variant.flat, replace(step.flat, invars=(*step.flat.invars,)), NEVER_REPEATED)
    unknown = Var(outs[0].aval)
    with pytest.raises(PlanError, match="the result reads"):
        verify(step.variant.flat, replace(step.flat, outvars=(unknown, *outs[1:])), NEVER_REPEATED)
