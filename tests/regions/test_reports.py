"""A region shows by its name in every report of a step that holds it, in lines of at most 80 columns."""

import functools
import json

import jax
import jax.numpy as jnp
import pytest

import recoup
from recoup import checkpoint, keep
from recoup._report.page import packed
from recoup._report.text import WIDTH, listing, table
from recoup._scopes import parts_of, region_names, region_of, region_scope, scope_path
from recoup._trace import trace
from recoup.errors import BudgetError

ROWS, WIDE = 128, 32
NAMES = ("encoder/blk0", "encoder/blk1", "encoder/blk2")


def block(x, up, down):
    h = jnp.tanh(keep(x @ up, "up"))
    return x + jnp.tanh(jnp.tanh(h * h) @ down)


def step(params, x):
    """Three regions by name, then layers that are none."""

    def loss(params):
        h = x
        for i, (up, down) in enumerate(params):
            f = checkpoint(block, name=NAMES[i]) if i < len(NAMES) else block
            h = f(h, up, down)
        return jnp.mean(h**2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def shape(*dims):
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def args(layers=6):
    return [(shape(WIDE, 4 * WIDE), shape(4 * WIDE, WIDE)) for _ in range(layers)], shape(ROWS, WIDE)


def scan_step(params, x):
    layer = checkpoint(block, name="layer")

    def loss(params):
        h, _ = jax.lax.scan(lambda h, p: (layer(h, *p), None), x, params)
        return jnp.mean(h**2)

    return jax.grad(loss)(params)


def scan_args():
    return (shape(4, WIDE, 4 * WIDE), shape(4, 4 * WIDE, WIDE)), shape(ROWS, WIDE)


@functools.cache
def planned(regions):
    return recoup.plan(step, *args(), budget="90%", regions=regions)


def says(report, *wanted):
    text = str(report)
    assert [name for name in wanted if name not in text] == []
    assert all(len(line) <= WIDTH for line in text.splitlines()), text
    return text


def test_residuals():
    text = says(recoup.residuals(step, *args()), *NAMES, "region")
    # What is kept by name in a region is in its row.
    assert sum("blk1" in line and "dot_general 'up'" in line for line in text.splitlines()) == 1
    rows = recoup.residuals(step, *args()).to_dict()["items"]
    assert {row["region"] for row in rows if row["kind"] == "computed"} == {*NAMES, ""}
    says(recoup.residuals(scan_step, *scan_args()), "layer")
    says(recoup.residuals(lambda x, up, down: checkpoint(block, name="one")(x, up, down),
                          shape(ROWS, WIDE), *args()[0][0]), "one")  # fmt: skip


def test_residuals_compared():
    plain = recoup.residuals(lambda p, x: block(block(x, *p[0]), *p[1]), *args(2))
    regions = recoup.residuals(lambda p, x: checkpoint(block, name="one")(block(x, *p[0]), *p[1]), *args(2))
    text = says(plain.diff(regions), "one")
    assert "one" in text.partition("Only the second keeps")[2]


def test_timeline():
    found = recoup.timeline(step, *args())
    says(found, "encoder/blk2", "region")
    assert {live["region"] for live in json.loads(found.to_json())["peak"]} >= set(NAMES)
    says(found.diff(recoup.timeline(scan_step, *scan_args())), "encoder/blk2", "layer")
    buffers = found.picture().strips[0].buffers
    assert {b.region for b in buffers} >= set(NAMES)
    # The backward pass of a region, and what it computes again, are in it as well.
    assert {b.role for b in buffers if b.region == "encoder/blk0"} >= {"recomputed", "backward", "kept"}
    assert "region encoder/blk0" in {b.part for b in buffers}
    says(recoup.timeline(scan_step, *scan_args()), "layer")


@pytest.mark.parametrize("regions", ["respect", "replan"])
def test_plan(regions, tmp_path):
    plan = planned(regions)
    assert not plan.changes_nothing
    how = "as they are" if regions == "respect" else "planned anew"
    says(plan, f"Regions of the step, {how}: encoder/blk0, encoder/blk1, encoder/blk2")
    kept = str(plan).partition("Kept, by source line")[2]
    assert all(name in kept for name in NAMES)
    again = str(plan).partition("Recomputed, by source line")[2].partition("Kept")[0]
    # What a region keeps by name is kept; dissolved, a name decides nothing.
    assert "'up'" not in again if regions == "respect" else any(name in again for name in NAMES)
    plan.save(tmp_path / "plan.json")
    says(recoup.Plan.load(tmp_path / "plan.json"), *NAMES)


def test_only_what_the_user_keeps_is_a_constraint():
    """By name or by policy; a region's own result is kept because it is cheap, and a plan may drop it."""

    def pure(wrap, **options):
        loss = lambda x, w: (wrap(lambda x: jnp.tanh(keep(x @ w, "up")))(x) ** 2).sum()
        found = trace(jax.grad(loss), (shape(64, 32), shape(32, 32)), **options).program
        return [op.pure for op in found.ops if op.name == "recoup_keep"]

    assert pure(checkpoint) == [False]
    assert pure(checkpoint, dissolve_regions=True) == [True] == pure(lambda f: f)
    result = lambda x, w: (checkpoint(lambda x: jnp.tanh(x @ w))(x) ** 2).sum()
    ops = trace(jax.grad(result), (shape(64, 32), shape(32, 32))).program.ops
    assert [op.pure for op in ops if op.name == "recoup_keep"] == [True]


def test_a_plan_that_changes_nothing_and_a_loop():
    says(recoup.plan(step, *args(3), budget="100%"), "runs as it is", *NAMES)
    plan = recoup.plan(scan_step, *scan_args(), budget="100%")
    assert plan.region_names == ("layer",)


@pytest.mark.parametrize("regions", ["respect", "replan"])
def test_page(regions):
    picture = planned(regions).picture()
    data = packed(picture)
    assert {d["region"] for d in data["decisions"]} >= set(NAMES)
    assert set(NAMES) <= set(data["words"])
    assert any("encoder/blk0, encoder/blk1" in note for note in picture.notes)
    assert "encoder/blk1" in json.dumps(recoup.residuals(step, *args()).picture().to_dict()["residuals"])


def test_advice():
    says(planned("respect").advise(), "the regions that the step has", *NAMES)
    replanned = planned("replan").advise()
    assert replanned.regions == ()
    # A dissolved region's function is one that can be wrapped.
    says(replanned, "block = recoup.checkpoint(block)")


def test_errors():
    with pytest.raises(BudgetError, match=r"held by .* in region 'encoder/blk\d'"):
        recoup.plan(step, *args(3), budget="20%")


def test_the_certified_step_and_the_compiled_arena():
    found = recoup.fit(step, *args(), budget="90%")
    arenas = found.picture().arenas
    for arena in arenas.values():
        assert {o["region"] for o in arena["occupants"]} & set(NAMES)
    arena = recoup.instruments.arena_of(found.compiled)
    says(arena, "encoder/blk")
    plain = jax.jit(jax.grad(lambda x: jnp.sin(x).sum())).lower(args()[1]).compile()
    says(arena.diff(recoup.instruments.arena_of(plain)), "encoder/blk")
    says(recoup.instruments.recomputed(found), *NAMES)
    says(found.plan, *NAMES)


def test_choices_of_regions():
    def loss(params, x):
        for i, (up, down) in enumerate(params):
            x = checkpoint(block, name=NAMES[i])(x, up, down)
        return jnp.mean(x**2)

    says(recoup.regions(loss, *args(3)), *NAMES)
    says(recoup.regions(lambda p, x: checkpoint(block, name="one")(x, *p[0]).sum(), *args(1)), "one")


def test_names_in_name_stacks():
    assert region_of("transpose(jvp(region(enc/a))/x)") == "enc/a"
    assert region_of("jvp()/layer") == ""
    assert region_of(f"jvp({region_scope('f(x) [1]')})/b") == "f[x] [1]"
    assert region_names(["region(b)", "", "region(a)/c", "region(b)/d"]) == ("b", "a")
    assert scope_path("transpose(jvp(jvp(region(blk))))/attention") == ("region blk", "attention")
    assert parts_of(["jvp(region(a))", "transpose(jvp(jvp(region(a))))"], ["", ""]) == ["region a"] * 2


def test_lists_of_names_fold():
    text = listing("Regions", [f"block_{i}" for i in range(30)])
    assert all(len(line) <= WIDTH for line in text.splitlines())
    assert text.endswith("block_19, and 10 more") and len(text.splitlines()) > 1
    assert listing("Regions", ["a"]) == "Regions: a"
    assert all(len(line) <= WIDTH for line in listing("Regions", ["x" * 200, "y\x1b\n" * 50]).splitlines())


def test_lines_keep_their_numbers_where_cells_are_cut():
    text = table(["line", "region"], [["a_long_file_name.py:123", "x" * 60]], width=40)
    assert text.splitlines()[1].split()[0].endswith("py:123") and len(text.splitlines()[1]) <= 40
    text = table(["line"], [["some_file.py:12 (function.<locals>.inner)"]], width=24)
    assert text.splitlines()[1].split()[0] == "some_file.py:12"


def test_empty_optional_columns_are_left_out():
    full = table(["a", "b", "c"], [["1", "", "3"]], right=(2,))
    assert "b" in full
    assert table(["a", "b", "c"], [["1", "", "3"]], right=(2,), optional=(1,)).split() == ["a", "c", "1", "3"]
    assert "b" in table(["a", "b", "c"], [["1", "", "3"], ["1", "2", "3"]], optional=(1,))
