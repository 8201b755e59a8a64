"""A schedule applied to a flat jaxpr: the same equations, recomputations behind barriers, nothing evaluated.

Idea: equations are emitted in the schedule's order with fresh variables for repeats. Right before the window
that needs them, what the repeats read from earlier and the value that opens the window (the trigger, newest
on the backward chain) go through one barrier, and both are read through it from there on: otherwise the
compiler drops the unused half of the barrier and the recomputation slides back into the forward pass.
Parameters are read directly; only an operation that reads nothing else is given its parameters through the
barrier, since it would merge with its first computation.
A value that the schedule fetches from host memory (see `_planner.offload`) is moved there where it is made;
its fetch reads it through the barrier like a recomputation.
Limits: a kept value's first late use also passes the barrier, so that its copies into other layouts are not
made early.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from recoup import _barrier, _compat
from recoup._compat import Literal, Var
from recoup._inline import Flat
from recoup._planner.layout import SMALL_BYTES, Layout
from recoup._planner.machine import step_windows
from recoup._program import OFFLOAD, Program

SPREAD_BYTES = 2**20  # per-channel vectors and the like; larger operands are read directly
RECOMPUTE_SCOPE = "recoup_recompute"
_SPREADS_SCALARS = frozenset(["max", "min", "select_n", "clamp", "broadcast_in_dim"])


def _key(literal: Any) -> tuple[str, str]:
    return str(literal.val), str(literal.aval)


def rewrite(flat: Flat, program: Program, plan: Layout, schedule: Sequence[int]) -> Flat:
    """The flat jaxpr that follows `schedule`, which was made for `program` and `plan`."""
    return _Rewriter(flat, program, plan).run(schedule)


class _Rewriter:
    def __init__(self, flat: Flat, program: Program, plan: Layout):
        self.flat, self.program, self.plan = flat, program, plan
        self.vars: list[Any] = [None] * len(program.values)
        self.index: dict[Any, int] = {}
        everything = [*flat.constvars, *flat.invars, *(v for eqn in flat.eqns for v in eqn.outvars)]
        for i, var in enumerate(everything):
            self.vars[i] = var
            self.index[var] = i
        self.current: list[Any] = list(self.vars)  # what a use of a value reads now
        self.fenced: set[int] = set()  # values that already passed a barrier
        self.again: set[int] = set()  # values whose uses now read a recomputation
        self.eqns: list[Any] = []
        self.specs: dict[Any, Any] = {}  # of those for recomputations, where the program is a device's part
        self.fresh: dict[Any, Any] = {}  # scalars of the current window, by value and dtype
        self.uses = self._late_uses()
        self.pinned: set[int] = set()
        self.members: dict[int, list[int]] = {}
        for o, w in enumerate(plan.window):
            if w:
                self.members.setdefault(w, []).append(o)
        self.pins: dict[int, Any] = {}  # what stands for a pinned value
        self.hosted: set[int] = set()  # values that lie in host memory
        self.fetched: set[int] = set()  # the copies that are fetched from there

    def run(self, schedule: Sequence[int]) -> Flat:
        self.pinned = self._to_pin(schedule)
        self.fetched = {o for o, times in Counter(schedule).items() if times > 1 and self._copies(o)}
        group: list[int] = []
        ops = self.program.ops
        done = [False] * len(ops)
        regathered = {o for o, n in Counter(schedule).items() if n > 1 and ops[o].gathered_bytes}
        window = 0
        for step, index in enumerate(schedule):
            if done[index]:
                group.append(step)
                continue
            done[index] = True
            if self.plan.window[index] != window or group:
                window = self.plan.window[index]
                self._open(window, [schedule[s] for s in group], group)
                group = []
            if self._copies(index):
                self._copy(index)
            elif index in regathered and not window:
                self._gather_late(index)
            else:
                self._emit(index, self.flat.eqns[index].outvars)
            self._pin(index, step)
            if index in self.fetched:
                self._store(index)
        shards = self.flat.shards
        if shards is not None:
            shards = shards.also(self.specs)
        return replace(self.flat, eqns=tuple(self.eqns), shards=shards)

    def _fresh(self, v: int) -> Any:
        """A variable for another computation of value `v`."""
        var = Var(self.vars[v].aval)
        if self.flat.shards is not None and self.vars[v] in self.flat.shards.specs:
            self.specs[var] = self.flat.shards.specs[self.vars[v]]
        return var

    def _to_pin(self, schedule: Sequence[int]) -> set[int]:
        """The steps whose fusible results wait for a later window.

        They have a buffer anyway; without a barrier the compiler would still compute them again inside their
        readers, and keep everything that they were made from alive for it.
        """
        ops, values = self.program.ops, self.program.values
        windows = step_windows(schedule, self.plan.window)
        made = [-1] * len(values)  # the step that computed what a use reads now
        waits: set[int] = set()
        for step, index in enumerate(schedule):
            for v in ops[index].reads:
                if made[v] >= 0 and windows[made[v]] != windows[step]:
                    waits.add(made[v])
            for v in ops[index].writes:
                made[v] = step
        return {
            step
            for step in waits
            if self._fusible(schedule[step]) and values[ops[schedule[step]].writes[0]].bytes >= SMALL_BYTES
        }

    def _copies(self, index: int) -> bool:
        return self.program.ops[index].name == OFFLOAD

    def _fusible(self, index: int) -> bool:
        if self._copies(index):
            index = self.program.values[self.program.ops[index].reads[0]].producer
        return self.program.ops[index].fusible

    def _copy(self, index: int) -> None:
        """The first run of a copy: the value itself."""
        (v,), (copy,) = self.program.ops[index].reads, self.program.ops[index].writes
        self.vars[copy] = self.current[copy] = self.current[v]

    def _store(self, index: int) -> None:
        """Moves the value that a copy is of to host memory."""
        (v,), (copy,) = self.program.ops[index].reads, self.program.ops[index].writes
        self.current[v] = self.current[copy]  # pinned, where it is
        self.current[v] = self.pins[v] = self._move(index, to_host=True)
        self.hosted.add(v)

    def _move(self, index: int, *, to_host: bool) -> Any:
        """The value that a copy is of, in the other memory."""
        value = self.current[self.program.ops[index].reads[0]]
        move = _compat.memory_move(value, to_host=to_host, like=self.flat.eqns[index])
        self.eqns.append(_compat.named(move, OFFLOAD))
        return move.outvars[0]

    def _pin(self, index: int, step: int) -> None:
        if step in self.pinned:
            v = self.program.ops[index].writes[0]
            out = Var(self.vars[v].aval)
            params = _barrier.barrier_params(0, mode=_barrier.FENCE)
            source = self.flat.eqns[index]
            self.eqns.append(_compat.new_eqn([self.current[v]], [out], _barrier.barrier_p, params, source))
            if self.current[v] is self.vars[v]:
                self.pins[v] = out
            self.current[v] = out

    def _emit(self, index: int, outvars: Sequence[Any], scope: str = "") -> None:
        eqn = self.flat.eqns[index]
        spread = eqn.primitive.name in _SPREADS_SCALARS
        invars = [
            (self.fresh.get(_key(v), v) if spread else v)
            if isinstance(v, Literal)
            else self.current[self.index[v]]
            for v in eqn.invars
        ]
        eqn = eqn.replace(invars=invars, outvars=list(outvars))
        self.eqns.append(_compat.named(eqn, scope) if scope else eqn)

    def _open(self, window: int, group: Sequence[int], steps: Sequence[int]) -> None:
        """A barrier, then the recomputations of `group`."""
        ops, values = self.program.ops, self.program.values
        own = {v for o in group for v in ops[o].writes}
        through: dict[int, None] = {}
        behind: set[int] = set()  # values that cannot exist before the barrier
        for o in group:
            outside = [v for v in ops[o].reads if v not in own]
            for v in outside:
                if self._early(v) and (values[v].producer >= 0 or self._expands(o, v)):
                    through[v] = None
            late = any(
                v in behind or v in through or (v in self.again and v not in own) for v in ops[o].reads
            )
            if not late:
                through.update(dict.fromkeys(outside))
            behind.update(ops[o].writes)
        for v in self._first_late_uses(window):
            if v not in own:
                through[v] = None
        literals = self._literals(window, group)
        trigger = self.plan.trigger[window]
        through.pop(trigger, None)
        self.fresh = {}
        if through and trigger >= 0:
            operands = [*through, trigger]
            outs = [Var(self.current[v].aval) for v in operands]
            scalars = [Var(v.aval) for v in literals.values()]
            params = _barrier.barrier_params(1, mode=_barrier.FENCE)
            like = self.flat.eqns[values[trigger].producer] if values[trigger].producer >= 0 else None
            self.eqns.append(
                _compat.new_eqn(
                    [*literals.values(), *(self.current[v] for v in operands)],
                    [*scalars, *outs],
                    _barrier.barrier_p,
                    params,
                    like,
                )
            )
            self.fresh = dict(zip(literals, scalars, strict=True))
            for v, var in zip(operands, outs, strict=True):
                self.current[v] = var
            self.fenced.update(through)
            if any(ops[o].gathered_bytes for o in group):
                self._place(through)
        for o, step in zip(group, steps, strict=True):
            if self._copies(o):
                self.current[ops[o].writes[0]] = self._move(o, to_host=False)
                self.again.add(ops[o].writes[0])
                continue
            outvars = [self._fresh(v) for v in ops[o].writes]
            self._emit(o, outvars, RECOMPUTE_SCOPE)
            for v, var in zip(ops[o].writes, outvars, strict=True):
                if v not in self.hosted:
                    self.current[v] = var
                    self.again.add(v)
            self._pin(o, step)

    def _gather_late(self, index: int) -> None:
        """Emits a gather that runs again later, behind the newest value that a product still has to read.

        It reads arguments only: without a barrier the compiler may gather all weights first, and hold them.
        """
        ops, values = self.program.ops, self.program.values
        gate = -1
        for o in range(index - 1, -1, -1):
            found = [v for v in ops[o].writes if values[v].bytes >= SMALL_BYTES and self._feeds(v, index)]
            if found:
                gate = found[0]
                break
        reads = [v for v in ops[index].reads if v != gate]
        held = {v: self.current[v] for v in reads}
        if gate >= 0:
            operands = [*reads, gate]
            outs = [Var(self.vars[v].aval) for v in operands]
            params = _barrier.barrier_params(1, mode=_barrier.FENCE)
            given = [self.current[v] for v in operands]
            self.eqns.append(_compat.new_eqn(given, outs, _barrier.barrier_p, params, self.flat.eqns[index]))
            self.current[gate] = self.pins[gate] = outs[-1]
            for v, out in zip(reads, outs, strict=False):
                self.current[v] = out
            self._place(reads)
        self._emit(index, self.flat.eqns[index].outvars)
        for v, before in held.items():
            self.current[v] = before

    def _feeds(self, v: int, index: int) -> bool:
        """Whether a product of the first epoch after operation `index` reads value `v`."""
        ops, window = self.program.ops, self.plan.window
        return any(r > index and not window[r] and ops[r].heavy for r in self.program.readers[v])

    def _place(self, through: Iterable[int]) -> None:
        """Says again how arguments are divided: the compiler would gather them before the barrier."""
        for v in through:
            sharding = self.flat.placed.get(self.vars[v])
            if sharding is not None:
                out = Var(self.vars[v].aval)
                self.eqns.append(_compat.constraint_eqn(self.current[v], out, sharding))
                self.current[v] = out

    def _literals(self, window: int, group: Sequence[int]) -> dict[Any, Any]:
        """Scalars that the window's operations spread over an array.

        As constants, their broadcasts would merge with the forward pass's into one array that lives from
        there to here.
        """
        found: dict[Any, Any] = {}
        for o in [*group, *self.members.get(window, ())]:
            if self.flat.eqns[o].primitive.name in _SPREADS_SCALARS:
                for v in self.flat.eqns[o].invars:
                    if isinstance(v, Literal) and getattr(v.aval, "shape", None) == ():
                        found.setdefault(_key(v), v)
        return found

    def _early(self, v: int) -> bool:
        """Whether what a use of `v` reads now was made in an earlier epoch, not by a recomputation."""
        return self.current[v] is self.pins.get(v, self.vars[v]) or v in self.fenced

    def _expands(self, o: int, v: int) -> bool:
        """Whether operation `o` spreads the small operand `v` over a larger result.

        The compiler writes such a broadcast out where it has several readers, and merges the forward pass's
        with the backward pass's: an array of full size would wait in between.
        """
        values = self.program.values
        if not self.program.ops[o].fusible:
            return False
        largest = max((values[w].bytes for w in self.program.ops[o].writes), default=0)
        return values[v].bytes <= SPREAD_BYTES and 2 * values[v].bytes <= largest

    def _late_uses(self) -> dict[int, list[int]]:
        """For each window the early values that it is the first to read late."""
        uses: dict[int, list[int]] = {}
        epoch, program = self.plan.epoch, self.program
        last = max(epoch, default=0)
        for v, value in enumerate(program.values):
            readers = program.readers[v]
            if not readers or epoch[readers[-1]] == 0 or epoch[readers[0]] == last:
                continue
            own = epoch[value.producer] if value.producer >= 0 else epoch[readers[0]]
            late = [r for r in readers if epoch[r] > own]
            if not late:
                continue
            if v in self.plan.crossing or (
                any(self._expands(r, v) for r in late)
                and any(self._expands(r, v) for r in readers if epoch[r] == own)
            ):
                uses.setdefault(self.plan.window[late[0]], []).append(v)
        return uses

    def _first_late_uses(self, window: int) -> list[int]:
        return [v for v in self.uses.get(window, ()) if self.current[v] is self.pins.get(v, self.vars[v])]
