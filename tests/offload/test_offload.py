"""Residuals moved to host memory: what moves, what it costs, what the rewritten step computes and says."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recoup
from recoup import _compat, _host, _memory
from recoup._cli import build_parser
from recoup._compiling import trace_step
from recoup._ladder import build
from recoup._offload import offers, stored
from recoup._planner import offload
from recoup._planner.layout import layout
from recoup._planner.machine import execute
from recoup._program import OFFLOAD
from recoup._trace import NEVER_REPEATED
from recoup._verify import verify
from recoup.errors import BudgetError, PlanError

BLOCKS, ROWS, WIDTH = 6, 512, 64
W = 0.2 * jax.random.normal(jax.random.key(0), (BLOCKS, 2, WIDTH, WIDTH))
X = jax.random.normal(jax.random.key(1), (ROWS, WIDTH))
ACTIVATION = 4 * ROWS * WIDTH
FAST = recoup.HostMemory(bytes_per_second=1e15, smallest_bytes=2**14)  # everything moves in time
SLOW = recoup.HostMemory(bytes_per_second=1e3, smallest_bytes=2**14)  # nothing does


def step(w: Any, x: Any) -> Any:
    def loss(w: Any) -> Any:
        h = x
        for i in range(len(w)):
            h = h + jnp.tanh(jax.nn.gelu(h @ w[i, 0]) @ w[i, 1])
        return jnp.mean(h * h)

    value, grads = jax.value_and_grad(loss)(w)
    return w - 0.1 * grads, value


@pytest.fixture(scope="module")
def traced() -> Any:
    return trace_step(step, (W, X), None, (), (), (), "respect")


@pytest.fixture(scope="module")
def plan() -> recoup.Plan:
    return recoup.plan(step, W, X, budget="55%", offload=FAST)


def fetched(schedule: Any, program: Any) -> set[int]:
    return {o for o, n in Counter(schedule).items() if n > 1 and program.ops[o].name == OFFLOAD}


class TestPlans:
    def test_a_fast_link_replaces_recomputation(self, plan: recoup.Plan) -> None:
        without = recoup.plan(step, W, X, budget="55%")
        assert plan.peak_bytes <= plan.budget_bytes
        moved = [d for d in plan.decisions if d.action == "offload"]
        assert moved and plan.offloaded_bytes == sum(d.bytes for d in moved) >= 4 * ACTIVATION
        assert plan.overhead < 0.5 * without.overhead
        assert {d.op for d in moved} <= {"dot_general", "add", "tanh"} and all(
            "test_offload" in d.source for d in moved
        )

    def test_a_slow_link_is_not_used(self) -> None:
        slow = recoup.plan(step, W, X, budget="55%", offload=SLOW)
        without = recoup.plan(step, W, X, budget="55%")
        assert not slow.offloaded_bytes and slow.overhead <= without.overhead

    def test_small_values_stay(self) -> None:
        large = replace(FAST, smallest_bytes=ACTIVATION + 1)
        assert not recoup.plan(step, W, X, budget="55%", offload=large).offloaded_bytes

    def test_what_a_plan_says(self, plan: recoup.Plan, tmp_path: Path) -> None:
        text = str(plan)
        assert "Offloaded to the host" in text and "not measured for speed" in text and "assumed" in text
        assert "offloaded to the host" in text
        page = tmp_path / "plan.html"
        plan.report(page)
        assert "not measured for speed" in page.read_text() and '"offload"' in page.read_text()
        data = plan.to_dict()
        assert data["moves"] and "pinned_host" in data["made_with"]["host memory"]

    def test_without_another_memory_nothing_moves_and_the_plan_says_so(self) -> None:
        assert _host.resolve(FAST, compiles=True) is None and _host.resolve(FAST, compiles=False) is FAST
        fitted = recoup.fit(step, W[:3], X, budget="75%", offload=True)
        assert not fitted.plan.offloaded_bytes and "the host's memory is the device's" in str(fitted.plan)
        assert fitted.memory.total_bytes <= fitted.plan.budget_bytes


class TestExecution:
    def test_on_a_cpu_a_stored_plan_runs_and_agrees_with_plain(
        self, plan: recoup.Plan, tmp_path: Path
    ) -> None:
        plan.save(tmp_path / "plan.json")
        fitted = recoup.fit(step, W, X, plan=tmp_path / "plan.json", budget="100%")
        assert fitted.plan.moves == plan.moves
        moves = [e for e in jax.make_jaxpr(fitted.fun)(W, X).eqns if _compat.is_memory_move(e)]
        stores = [e for e in moves if _compat.on_host(e.outvars[0].aval)]
        assert len(stores) == sum(d.action == "offload" for d in plan.decisions) <= len(moves) / 2
        # To the bit where the compiler fuses both alike: on JAX 0.10 here.
        agreement = recoup.check(step, fitted, W, X)
        assert agreement and (agreement.equal or _compat.JAX_VERSION >= (0, 12))

    def test_its_own_budget_is_not_certified_where_both_are_one_memory(self, plan: recoup.Plan) -> None:
        with pytest.raises(BudgetError, match=r"of it offloaded: here the host's memory is the device's"):
            recoup.fit(step, W, X, plan=plan)

    def test_evaluated_one_by_one_values_lie_in_pinned_host(self) -> None:
        """Eagerly each move is a transfer between JAX's memory kinds, which a CPU has too."""
        w = W[:2]
        plan = recoup.plan(step, w, X, budget="70%", offload=FAST)
        fitted = recoup.fit(step, w, X, plan=plan, budget=2**30)
        inner, consts = _compat.open_jaxpr(jax.make_jaxpr(fitted.fun)(w, X))
        values = dict(zip(inner.constvars, consts, strict=True)) | dict(
            zip(inner.invars, (w, X), strict=True)
        )
        kinds: Counter[str] = Counter()
        for eqn in inner.eqns:
            read = [v.val if isinstance(v, _compat.Literal) else values[v] for v in eqn.invars]
            out = _compat.bind_eqn(eqn, read)
            values.update(zip(eqn.outvars, out, strict=True))
            if _compat.is_memory_move(eqn):
                kinds[out[0].sharding.memory_kind] += 1
        count = sum(d.action == "offload" for d in plan.decisions)
        assert kinds["pinned_host"] == count > 0 and kinds["device"] >= count
        for v, want in zip(inner.outvars, jax.tree.leaves(jax.jit(step)(w, X)), strict=True):
            assert np.allclose(values[v], want, atol=1e-6)

    @pytest.mark.parametrize("platform", ["cuda", "tpu"])
    def test_lowered_for_an_accelerator_moves_are_annotated_behind_barriers(
        self, plan: recoup.Plan, platform: str
    ) -> None:
        fitted = recoup.fit(step, W, X, plan=plan, budget="100%")
        text = jax.jit(fitted.fun).trace(W, X).lower(lowering_platforms=(platform,)).as_text()
        count = sum(d.action == "offload" for d in plan.decisions)
        assert text.count('_xla_buffer_placement = "pinned_host"') == count
        assert text.count('_xla_buffer_placement = "device"') >= count
        last_store = text.rindex('_xla_buffer_placement = "pinned_host"')
        assert "optimization_barrier" in text[last_store : text.index('_xla_buffer_placement = "device"')]

    def test_residuals_of_the_planned_step_list_them_apart(self, plan: recoup.Plan) -> None:
        fitted = recoup.fit(step, W, X, plan=plan, budget="100%")
        found = recoup.residuals(fitted.fun, W, X)
        assert found.offloaded_bytes == plan.offloaded_bytes
        assert "Offloaded to the host's memory" in str(found)
        assert found.total_bytes < recoup.residuals(step, W, X).total_bytes

    def test_a_loop_s_stack_moves_whole(self) -> None:
        """Two loops, so that the first one's stack waits while the second runs."""

        def body(h: Any, p: Any) -> Any:
            return jnp.tanh(h @ p), None

        def two(w: Any, x: Any) -> Any:
            def loss(w: Any) -> Any:
                h, _ = jax.lax.scan(body, x, w[:, 0])
                h, _ = jax.lax.scan(body, h[::2], w[:, 1])
                return jnp.mean(h * h)

            return jax.value_and_grad(loss)(w)

        ladder = build(trace_step(two, (W, X), None, (), (), (), "respect"), host=FAST)
        stacks = []
        for rung in ladder.steps:
            program = rung.variant.program
            copies = [program.ops[o].writes[0] for o in fetched(rung.rung.schedule, program)]
            if any(program.values[v].bytes == BLOCKS * ACTIVATION for v in copies):
                stacks.append(rung)
        flat = stacks[-1].flat
        verify(stacks[-1].variant.flat, flat, NEVER_REPEATED)
        got = jax.jit(lambda *args: _compat.eval_jaxpr(flat.closed(), *args))(W, X)
        for ours, want in zip(got, jax.tree.leaves(jax.jit(two)(W, X)), strict=True):
            assert np.array_equal(ours, want)


class TestMachine:
    def test_every_rung_is_legal_and_computes_the_same(self, traced: Any) -> None:
        ladder = build(traced, host=FAST)
        moving = [s for s in ladder.steps if fetched(s.rung.schedule, s.variant.program)]
        assert moving
        for rung in moving[:: max(1, len(moving) // 4)]:
            verify(rung.variant.flat, rung.flat, NEVER_REPEATED)
            execute(rung.variant.program, rung.rung.schedule, rung.variant.layout.windows)

    def test_a_fetch_begins_before_the_window_that_needs_it(self, traced: Any) -> None:
        ladder = build(traced, host=FAST)
        ahead = 0
        for rung in ladder.steps:
            program, plan = rung.variant.program, rung.variant.layout
            group: list[int] = []
            seen: set[int] = set()
            for o in rung.rung.schedule:
                if o in seen:
                    group.append(o)
                    continue
                seen.add(o)
                for again in group:
                    if program.ops[again].name == OFFLOAD:
                        copy = program.ops[again].writes[0]
                        later = [r for r in program.readers[copy] if r >= o]
                        ahead += bool(later) and plan.window[later[0]] > plan.window[o]
                group = []
        assert ahead

    def test_the_link_carries_what_its_rate_allows(self, traced: Any) -> None:
        program, division = traced.program, layout(traced.program)
        found = offload.candidates(program, division, FAST)
        assert offload.in_time(program, division, found, SLOW) == []
        most = 0
        for rate in (1e9, 1e10, 1e11, 1e12, 1e13):
            host = replace(FAST, bytes_per_second=rate, flops_per_second=1e12)
            free = offload.in_time(program, division, found, host)
            moved = sum(program.values[v].bytes for v in free)
            early = sum(op.cost for op, e in zip(program.ops, division.epoch, strict=True) if e == 0)
            assert moved <= rate * early / 1e12 and moved >= most
            most = moved
        assert most >= 0.5 * sum(program.values[v].bytes for v in found)

    def test_the_memory_model_counts_nothing_for_what_lies_on_the_host(self, traced: Any) -> None:
        ladder = build(traced, host=FAST)
        moving = [s for s in ladder.steps if fetched(s.rung.schedule, s.variant.program)]
        rung = min(moving, key=lambda s: s.peak_bytes)
        apart = rung.prediction.estimate.temporaries_bytes
        closed = rung.flat.closed()
        one = _memory.predict(closed, donated=rung.donated).estimate.temporaries_bytes
        bytes_of = rung.variant.program.values
        moved = sum(
            bytes_of[rung.variant.program.ops[o].writes[0]].bytes
            for o in fetched(rung.rung.schedule, rung.variant.program)
        )
        assert 0.5 * moved < one - apart <= moved

    def test_an_offer_that_nothing_takes_is_the_same_program(self, traced: Any) -> None:
        (first, *_) = offers(traced.flat, traced.program, FAST, traced.argument_names, traced.donated)
        verify(traced.flat, first.flat, NEVER_REPEATED)
        before = _memory.predict(traced.flat.closed()).estimate
        assert _memory.predict(first.flat.closed()).estimate == before


class TestCommand:
    @pytest.mark.parametrize(
        ("given", "want"), [([], False), (["--offload"], True), (["--offload", "25"], 25e9)]
    )
    def test_a_rate_in_gigabytes_a_second(self, given: list[str], want: object) -> None:
        for command in ("plan", "fit"):
            options = build_parser().parse_args([command, "file.py:make", "--budget", "1GiB", *given])
            assert options.offload == want and type(options.offload) is type(want)

    @pytest.mark.parametrize("rate", ["0", "-1", "fast", "inf"])
    def test_no_rate(self, rate: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            build_parser().parse_args(["plan", "file.py:make", "--budget", "1GiB", "--offload", rate])
        assert "--offload" in capsys.readouterr().err


class TestRefusals:
    def test_a_move_of_an_argument_or_a_result(self, traced: Any) -> None:
        for v in (0, traced.program.outputs[0], len(traced.program.values)):
            with pytest.raises(PlanError, match=f"moves value {v} to host memory"):
                stored(traced.flat, traced.program, [v], traced.argument_names, traced.donated)

    def test_moves_of_the_plan_file(self, plan: recoup.Plan) -> None:
        data = plan.to_dict()
        with pytest.raises(PlanError, match="'moves'"):
            recoup.Plan.from_dict(data | {"moves": [-1]})

    @pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
    def test_rates_above_zero(self, rate: float) -> None:
        with pytest.raises(ValueError, match="above 0"):
            recoup.HostMemory(bytes_per_second=rate)

    def test_what_offload_takes(self) -> None:
        with pytest.raises(TypeError, match="offload="):
            recoup.plan(step, W, X, budget="55%", offload="pinned_host")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="pinned_host"):
            recoup.HostMemory(kind="disk")
        assert _host.resolve(False, compiles=False) is None
