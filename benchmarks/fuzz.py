"""Random training steps through all of recoup, looking for a wrong number, a broken budget or a crash.

    python -m benchmarks.fuzz --minutes 30 --seed 0 --log run.json     as long as one likes
    python -m benchmarks.fuzz --one 1234 --size small                  one program again, with its text
    python -m benchmarks.fuzz --table run.json ... > results/fuzz.md   the page of one or more runs

Of each program (see `benchmarks.programs`): every rung of its ladder is executed by the model machine and
read as a program (each value written once, before it is read; each effect as often as in plain); then
`recoup.fit` at three random budgets between the smallest predicted peak and plain's, each compiled result
held to its certificate and compared with plain by the rule of `recoup.check`; then one plan drawn at random,
however unwise, rewritten, compiled and compared likewise. Rewritten programs are also proved equal by value
numbering (`recoup._verify`). Where a difference is larger
than the compiler's own rounding explains, both programs are evaluated one operation at a time
(`benchmarks.literal`): equal bits there mean that the rewriting is right and the program amplifies rounding
(a comparison that flips); anything else is a failure, which is shrunk to a short program and printed.

Compiling takes most of the time. So a rung that several budgets of a program arrive at is compiled once, and
three programs of four are compiled without LLVM's optimizations, which change neither what is fused nor what
is allocated. In "tiny" and "small" programs values of any size are
recomputed, where planning normally leaves those of a few KiB alone.
"""

import argparse
import collections
import gc
import json
import random
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

import recoup
from benchmarks import fuzz_table, literal, programs
from recoup import _check, _ladder, _levers, _rewrite
from recoup._agreement import Agreement, compare
from recoup._compiling import Compiler, _compiler_options, compiled_memory, to_function, trace_step
from recoup._planner import layout as layouts
from recoup._planner.assign import assign
from recoup._planner.machine import execute
from recoup._planner.options import levels
from recoup._trace import NEVER_REPEATED
from recoup._verify import verify
from recoup.errors import BudgetError, EffectError

BUDGETS = 3
QUICK: dict[str, str | bool] = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
}
SLOW_SECONDS = 300.0


class Wrong(Exception):
    """Something that must never happen. `kind` is one word, for shrinking to the same kind of failure."""

    def __init__(self, kind: str, text: str):
        super().__init__(f"{kind}: {text}")
        self.kind = kind


@dataclass
class Log:
    """What a run did, as stored."""

    jax: str = jax.__version__
    seeds: list[int] = field(default_factory=list)
    size: str = "small"
    double: bool = False
    seconds: float = 0.0
    programs: int = 0
    not_programs: int = 0
    rungs: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    primitives: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    slowest_seconds: float = 0.0
    running: int | None = None  # the seed under attack; left in the log by a process that died of it


Outputs = dict[str, np.ndarray]


class Program:
    """One random step with everything that the three budgets share."""

    def __init__(self, case: Any, options: dict[str, str | bool]):
        self.case, self.options = case, options
        self.traced = trace_step(case.step, case.args, None, case.donate, (), (), "respect")
        jitted = jax.jit(case.step, donate_argnums=case.donate)
        compiled = jitted.lower(*case.args).compile(compiler_options=options or None)
        self.plain_bytes = compiled_memory(compiled, self.traced).total_bytes
        self.want = self.run(compiled)
        self.ladder = _ladder.build(self.traced)
        self._unfused: Outputs | None = None
        self._compiled: dict[tuple[int, str], Any] = {}

    def run(self, fun: Callable[..., Any]) -> Outputs:
        """The outputs of a function on the case's arguments; donated ones are copied."""
        args = [jax.numpy.copy(a) if i in self.case.donate else a for i, a in enumerate(self.case.args)]
        return _check._arrays(fun(*args))

    def fit(self, budget: int) -> recoup.Fitted:
        """The step at a budget. All budgets have one ladder, and compile each of its programs once."""
        compile_it = Compiler.compile

        def compile_once(compiler: Compiler, flat: Any, stage: str | None, lever: str = "") -> Any:
            key = id(flat), lever  # the ladder keeps its programs, so no other has this id
            if key not in self._compiled:
                self._compiled[key] = compile_it(compiler, flat, stage, lever)
            else:
                compiler.count += 1
            return self._compiled[key]

        case = self.case
        with (
            mock.patch.object(_ladder, "build", lambda traced, **options: self.ladder),
            mock.patch.object(Compiler, "compile", compile_once),
        ):
            return recoup.fit(
                case.step,
                *case.args,
                budget=budget,
                donate_argnums=case.donate,
                compiler_options=self.options or None,
            )

    def step_of(self, fitted: recoup.Fitted) -> Any:
        """The rung that a fitted step was compiled from."""
        if fitted.plan.lever:
            return _levers.offered(self.ladder.steps[0])
        compiled = {at: result[0] for at, result in self._compiled.items()}
        steps = self.ladder.steps
        return next(step for step in steps if compiled.get((id(step.flat), "")) is fitted.compiled)

    def compare(self, got: Outputs) -> Agreement:
        """By the rule of `recoup.check`."""
        _check._same_types(self.want, got)
        outputs = [compare(path, _check._text(x), x, got[path]) for path, x in self.want.items()]
        if not all(output.equal for output in outputs):
            if self._unfused is None:
                lowered = jax.jit(self.case.step).lower(*self.case.args)
                self._unfused = self.run(
                    lowered.compile(compiler_options=self.options | _check.UNFUSED_OPTIONS)
                )
            moved = self._unfused
            outputs = [_check._with_rounding(o, self.want[o.path], moved[o.path]) for o in outputs]
        return Agreement(tuple(outputs))

    def legal(self, step: Any) -> None:
        """A rung is executed by the machine and read as a program.

        Raises:
          Wrong: it is not legal.
        """
        program, layout, schedule = step.variant.program, step.variant.layout, step.rung.schedule
        try:
            execute(program, schedule, layout.window)
        except recoup.RecoupError as error:
            raise Wrong("machine", str(error)) from error
        self.proved(step.variant.flat, step.flat)

    def proved(self, flat: Any, rewritten: Any) -> None:
        """A rewritten program computes what the program before it computes.

        Raises:
          Wrong: it does not.
        """
        try:
            verify(flat, rewritten, NEVER_REPEATED)
        except recoup.RecoupError as error:
            raise Wrong("values", str(error)) from error

    def any_plan(self, rng: random.Random) -> Callable[..., Any] | None:
        """The step rewritten by a plan drawn at random; None if no value waits for a late use."""
        variants = {id(step.variant): step.variant for step in self.ladder.steps}
        variant = rng.choice(list(variants.values()))
        program, plan = variant.program, layouts.layout(variant.program)
        crossing = sorted(plan.crossing)
        if not crossing:
            return None
        kept = {v for v in crossing if rng.random() < 0.3}
        parts = layouts.zones(program, plan, rng.randint(2, 6))
        assigned = assign(program, plan, parts, levels(program, plan, parts, kept))
        execute(program, assigned.schedule, plan.window)
        flat = _rewrite.rewrite(variant.flat, program, plan, assigned.schedule)
        self.proved(variant.flat, flat)
        return to_function(flat, self.traced, "step")

    def amplifies_rounding(self, fun: Callable[..., Any]) -> bool:
        """Whether both programs give the same bits when nothing is fused."""
        leaves = jax.tree.leaves(self.case.args)
        plain = literal.evaluate(jax.make_jaxpr(self.case.step)(*self.case.args), *leaves)
        ours = literal.evaluate(jax.make_jaxpr(fun)(*self.case.args), *leaves)
        pairs = zip(_check._arrays(plain).values(), _check._arrays(ours).values(), strict=True)
        return all(compare("", "", a, b).equal for a, b in pairs)


def attack(case: Any, seed: int, log: Log | None = None) -> list[str]:
    """Runs one case at random budgets; the outcomes.

    Raises:
      Wrong: what must never happen happened.
    """
    rng = random.Random(seed)
    options = {} if rng.random() < 0.25 else dict(QUICK)
    try:
        program = Program(case, options)
    except Exception as error:
        if "recoup" in "".join(traceback.format_tb(error.__traceback__)[-3:]):
            raise Wrong("planning", _last(error)) from error
        raise
    ladder = program.ladder
    for step in ladder.steps:
        program.legal(step)
    if log is not None:
        log.rungs += len(ladder.steps)
    low = min(step.prediction.estimate.total_bytes for step in ladder.steps)
    shares = [rng.uniform(-0.05, 1.0) for _ in range(BUDGETS)]
    # below 0 where the step as it is compiles lower than any plan is predicted
    room = program.plain_bytes - low
    found, sizes = [], []
    for budget in sorted((max(1, int(low + share * room)) for share in shares), reverse=True):
        outcome, size = _at(program, budget)
        found.append(outcome)
        sizes.append(size)
    reached = [size for size in sizes if size]
    if reached != sorted(reached, reverse=True):
        found.append("(a smaller budget gave a higher peak)")
    try:
        fun = program.any_plan(rng)
        if fun is not None:
            jitted = jax.jit(fun, donate_argnums=case.donate)
            compiled = jitted.lower(*case.args).compile(compiler_options=_compiler_options(options) or None)
            found.append(_judged(program, compiled, fun, "any plan"))
    except Wrong:
        raise
    except Exception as error:
        raise Wrong("any plan", _last(error)) from error
    return found


def _at(program: Program, budget: int) -> tuple[str, int]:
    """One budget: the outcome, and the certified bytes."""
    try:
        fitted = program.fit(budget)
    except BudgetError as error:
        # Regions of the step's own are kept apart in `fit`, where plain `jax.jit` may merge them again: what
        # counts is the step as `fit` compiles it.
        if budget >= program.plain_bytes and budget >= program.fit(2**50).memory.total_bytes:
            raise Wrong(
                "refused", f"{budget} bytes are refused, plain takes {program.plain_bytes}"
            ) from error
        return "infeasible", 0
    except EffectError:
        return "effect refused", 0
    except Exception as error:
        raise Wrong("crash", _last(error)) from error
    total = fitted.memory.total_bytes
    if total > budget:
        raise Wrong("budget", f"{total} bytes certified for a budget of {budget}")
    plan = fitted.plan
    name = "as it is" if plan.changes_nothing else plan.lever or ("loops" if plan.loops else "recomputed")
    try:
        return _judged(program, fitted, fitted.fun, name), total
    except Wrong:
        raise
    except Exception as error:
        raise Wrong("run", _last(error)) from error


def _judged(program: Program, compiled: Callable[..., Any], fun: Callable[..., Any], name: str) -> str:
    """How the results of a compiled program compare with plain's."""
    found = program.compare(program.run(compiled))
    if found.equal:
        return f"{name}, equal to the bit"
    if found.agrees:
        return f"{name}, equal up to rounding"
    if program.amplifies_rounding(fun):
        return f"{name}, rounding amplified"
    raise Wrong("numbers", f"{name}:\n{found}")


def _last(error: BaseException) -> str:
    lines = traceback.format_exception(error)
    return "".join(lines[-8:])[-3000:]


def shortest(case: Any, seed: int, kind: str, attempts: int, seconds: float) -> Any:
    """The shortest program found that fails in the same way."""
    until = time.monotonic() + seconds

    def fails(other: Any) -> bool:
        if time.monotonic() > until:
            return False
        try:
            attack(other, seed)
        except Wrong as wrong:
            return wrong.kind == kind
        except Exception:
            return False
        return False

    return programs.smallest(case, fails, attempts)


def small_too(size: str) -> None:
    """In programs of small arrays no array is too small for a recomputation."""
    if size != "medium":
        layouts.SMALL_BYTES = _rewrite.SMALL_BYTES = 0


def run(
    seeds: Sequence[int],
    size: str,
    minutes: float,
    path: Path | None,
    shrink_seconds: float = 240.0,
    double: bool = False,
) -> Log:
    """Attacks the programs of these seeds until the time is over; `double`: with float64 in them."""
    log, start = Log(size=size, double=double), time.monotonic()
    small_too(size)
    outcomes: collections.Counter[str] = collections.Counter()
    covered: collections.Counter[str] = collections.Counter()
    for number, seed in enumerate(seeds):
        if time.monotonic() - start > 60 * minutes:
            break
        begun = time.monotonic()
        try:
            case = programs.draw(seed, size, double=double)
            primitives = case.primitives
        except Exception as error:
            log.not_programs += 1
            print(f"seed {seed}: no program: {_last(error)[-300:]}", flush=True)
            continue
        log.seeds.append(seed)
        log.programs += 1
        log.running = seed
        _store(log, path)
        covered.update(primitives)
        try:
            outcomes.update(attack(case, seed, log))
        except Wrong as wrong:
            outcomes["FAILED"] += 1
            print(f"seed {seed}: {wrong}", flush=True)
            small = shortest(case, seed, wrong.kind, 60, shrink_seconds) if shrink_seconds else case
            print(small.description, flush=True)
            log.failures.append(
                {"seed": seed, "kind": wrong.kind, "text": str(wrong), "program": small.description}
            )
        except Exception as error:
            outcomes["plain fails"] += 1
            print(f"seed {seed}: plain fails: {_last(error)[-600:]}", flush=True)
        took = time.monotonic() - begun
        log.slowest_seconds = max(log.slowest_seconds, took)
        if took > SLOW_SECONDS:
            print(f"seed {seed}: {took:.0f} s", flush=True)
        log.seconds = time.monotonic() - start
        log.outcomes, log.primitives, log.running = dict(outcomes), dict(covered), None
        if number % 10 == 9:
            jax.clear_caches()
            gc.collect()
            print(f"{log.programs} programs, {log.seconds:.0f} s: {dict(outcomes)}", flush=True)
    _store(log, path)
    return log


def _store(log: Log, path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(asdict(log), indent=1) + "\n", encoding="utf-8")


def attack_again(path: Path) -> None:
    """Attacks what failed in a stored run once more, and stores what it does now."""
    log = json.loads(path.read_text(encoding="utf-8"))
    small_too(log["size"])
    double = log.get("double", False)
    jax.config.update("jax_enable_x64", double)
    for failure in log["failures"]:
        try:
            attack(programs.draw(failure["seed"], log["size"], double=double), failure["seed"])
            failure["now"] = "no failure"
        except Exception as error:
            failure["now"] = str(error).strip().splitlines()[0][:100]
        print(f"seed {failure['seed']}: {failure['now']}", flush=True)
    path.write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the next is one more")
    parser.add_argument("--programs", type=int, default=10**6, help="how many at most")
    parser.add_argument("--size", default="medium", choices=("tiny", "small", "medium"))
    parser.add_argument("--double", action="store_true", help="with float64 (jax_enable_x64)")
    parser.add_argument("--log", type=Path, metavar="FILE", help="store what was done as JSON")
    parser.add_argument("--no-shrink", action="store_true", help="report failures as they are")
    parser.add_argument("--one", type=int, metavar="SEED", help="print and attack one program")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="logs to make the page of")
    parser.add_argument("--again", type=Path, metavar="FILE", help="attack what failed in a stored run again")
    options = parser.parse_args()
    if options.table:
        print(
            fuzz_table.markdown([json.loads(path.read_text(encoding="utf-8")) for path in options.table]),
            end="",
        )
        return
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    if options.again is not None:
        attack_again(options.again)
        return
    jax.config.update("jax_enable_x64", options.double)
    if options.one is not None:
        small_too(options.size)
        case = programs.draw(options.one, options.size, double=options.double)
        print(case.description)
        print(attack(case, options.one))
        return
    seeds = range(options.seed, options.seed + options.programs)
    shrink_seconds = 0.0 if options.no_shrink else 240.0
    log = run(seeds, options.size, options.minutes, options.log, shrink_seconds, options.double)
    raise SystemExit(1 if log.failures else 0)


if __name__ == "__main__":
    main()
