"""The page: one file, safe, small. What a browser makes of it is in test_browser.py."""

import base64
import hashlib
import html
import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from recoup._report.page import packed, render
from tests.report.samples import HOSTILE, picture_of

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def test_no_name_can_leave_the_data():
    page = render(picture_of())
    assert page.count("<script") == 2  # the data and the script
    assert page.count("</script>") == 2
    assert "<img" not in page and 'onmouseover="' not in page.split("<script>")[0].split('id="data"')[0]
    data = json.loads(DATA.search(page)[1])
    assert data == json.loads(json.dumps(packed(picture_of())))
    assert set(HOSTILE) <= set(data["words"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=4))
def test_any_names_come_back_as_they_were(names):
    page = render(picture_of(names, operations=5))
    assert page.count("<script") == 2
    data = json.loads(DATA.search(page)[1])
    assert data["notes"] == [names[1 % len(names)]]
    title = re.search(r"<title>(.*?) · recoup</title>", page, re.DOTALL)[1]
    assert html.unescape(title) == html.unescape(html.escape(names[0]))


def test_the_policy_allows_this_script_and_no_network():
    page = render(picture_of())
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page
    urls = set(re.findall(r"https?://[^\s\"'<>]+", render(picture_of(["plain"]))))
    assert urls == {"http://www.w3.org/2000/svg"}  # a namespace, never fetched


def test_five_thousand_operations_are_under_a_megabyte():
    lines = [
        f"/a/long/path/to/some/project/models/transformer_layers.py:{n} (attention_{n})" for n in range(400)
    ]
    assert len(render(picture_of(lines, operations=5000))) < 1_000_000


def test_numbers_stay_with_their_units():
    assert "12&nbsp;MiB" in render(picture_of())


def test_packed_buffers_are_the_strips():
    picture = picture_of(operations=17)
    data = packed(picture)
    for strip, small in zip(picture.strips, data["strips"], strict=True):
        rows = [small["buffers"][i : i + 10] for i in range(0, len(small["buffers"]), 10)]
        assert [(b.bytes, b.first, b.last) for b in strip.buffers] == [
            (r[0], r[1], r[1] + r[2]) for r in rows
        ]
        assert [b.source for b in strip.buffers] == [data["words"][r[5]] for r in rows]
        assert [op.name for op in strip.ops] == [data["words"][i] for i in small["ops"][::3]]
