"""report(), and how results show in a notebook."""

import json
import re

import pytest

import recoup
from tests.report.samples import mlp_args, mlp_step, scan_args, scan_step


def test_a_file_is_not_overwritten_unless_asked(plan, tmp_path):
    path = tmp_path / "plan.html"
    plan.report(path)
    first = path.read_text(encoding="utf-8")
    with pytest.raises(FileExistsError, match="force=True"):
        plan.report(path)
    plan.report(path, force=True)
    assert path.read_text(encoding="utf-8") == first  # and it is deterministic
    with pytest.raises(ValueError, match="'html', 'perfetto', 'json'"):
        plan.report(tmp_path / "x", format="pdf")
    assert not (tmp_path / "x").exists()


def test_a_plans_picture(plan):
    picture = plan.picture()
    assert picture.title == "mlp_step"
    assert [s.title for s in picture.strips] == ["As it is", "Planned"]
    assert max(picture.strips[1].totals()) < max(picture.strips[0].totals())
    assert sum(r.chosen for r in picture.curve) == 1
    assert picture.curve[0].overhead == 0
    chosen = next(r for r in picture.curve if r.chosen)
    assert chosen.high_bytes == plan.peak_bytes and chosen.overhead == pytest.approx(plan.overhead)
    assert len(picture.decisions) == len(plan.decisions)
    assert all(f.instrument and f.kind for f in picture.figures)
    json.dumps(picture.to_dict())


def test_a_plan_from_a_file_shows_what_the_file_has(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    loaded = recoup.Plan.load(tmp_path / "plan.json")
    assert loaded == plan and loaded.evidence is None
    picture = loaded.picture()
    assert not picture.strips and not picture.curve and picture.decisions
    loaded.report(tmp_path / "plan.html")
    with pytest.raises(recoup.errors.PlanError, match="plan the step anew"):
        loaded.advise()
    fitted = recoup.fit(mlp_step, *mlp_args(), plan=loaded, budget=plan.unplanned_bytes)
    assert [s.title for s in fitted.picture().strips] == ["As it is", "Planned"]


def test_a_fitted_step_shows_its_compiled_arena(tmp_path):
    fitted = recoup.fit(mlp_step, *mlp_args(), budget="70%")
    picture = fitted.picture()
    (arena,) = picture.arenas.values()
    assert arena["temporaries_bytes"] == fitted.memory.temporaries_bytes
    assert sum(o["bytes"] for o in arena["occupants"]) == arena["temporaries_bytes"]
    certified = picture.figures[0]
    assert (certified.value, certified.kind) == (fitted.memory.total_bytes, "compiled")
    assert "certified by the compiler" in picture.headline
    fitted.report(tmp_path / "fit.html")
    fitted.report(tmp_path / "fit.json", format="json")
    stored = json.loads((tmp_path / "fit.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(picture.to_dict()))


def test_a_step_that_fits_as_it_is_has_one_strip():
    plan = recoup.plan(scan_step, *scan_args(), budget="1GiB")
    assert [s.title for s in plan.picture().strips] == ["As it is"]
    assert "Nothing is recomputed" in plan.picture().headline


def test_loops_are_planned_and_drawn():
    plan = recoup.plan(scan_step, *scan_args(), budget="75%")
    before, after = (max(s.totals()) for s in plan.picture().strips)
    assert after < before


def test_timeline_and_residuals_report(tmp_path):
    line = recoup.timeline(mlp_step, *mlp_args())
    line.report(tmp_path / "timeline.html")
    line.report(tmp_path / "timeline.json", format="perfetto")
    kept = recoup.residuals(mlp_step, *mlp_args())
    kept.report(tmp_path / "residuals.html")
    assert kept.picture().residuals
    assert len(line.to_dict()["buffers"]) == len(line.picture().strips[0].buffers)


def test_notebooks_show_the_text_and_a_picture(plan):
    for value, pictures in (
        (plan, 2),
        (recoup.timeline(mlp_step, *mlp_args()), 1),
        (recoup.residuals(mlp_step, *mlp_args()), 0),
        (plan.advise(), 0),
    ):
        shown = value._repr_html_()
        assert shown.count("<svg") == pictures
        assert not re.search(r"\x1b", shown)
        assert str(value).splitlines()[0] in shown


def test_a_frontier_reports_its_curve(tmp_path):
    found = recoup.frontier(mlp_step, *mlp_args(), points=6)
    found.report(tmp_path / "frontier.html")
    picture = found.picture()
    assert [r.high_bytes for r in picture.curve] == [p.peak_bytes for p in found.points]
    assert [r.chosen for r in picture.curve].index(True) == found.knee
    graph = recoup.frontier(recoup.Graph([1.0] * 6, [4] * 6, [(i, i + 1) for i in range(5)]), points=3)
    assert graph.picture().work == "cost"
    assert '"mark":"knee"' in (tmp_path / "frontier.html").read_text(encoding="utf-8")
