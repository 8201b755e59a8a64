"""Overlapping events: each instant of a thread counts once, for the innermost event."""

from hypothesis import given
from hypothesis import strategies as st

from recoup._instruments.intervals import Event, busy_by_name, busy_by_thread, clip, union_ns

EVENTS = st.lists(
    st.builds(
        lambda thread, name, start, length: Event(f"t{thread}", f"n{name}", start, start + length),
        st.integers(0, 2),
        st.integers(0, 3),
        st.integers(0, 30),
        st.integers(1, 10),
    ),
    max_size=12,
)


def test_a_loop_does_not_count_its_body_twice() -> None:
    events = [Event("a", "while", 0, 100), Event("a", "dot", 10, 40), Event("a", "dot", 50, 80)]
    assert busy_by_name(events) == {"while": 40, "dot": 60}
    assert busy_by_thread(events) == {"a": 100}


def test_threads_add() -> None:
    events = [Event("a", "dot", 0, 10), Event("b", "dot", 5, 15)]
    assert busy_by_name(events) == {"dot": 20}
    assert union_ns((e.start_ns, e.end_ns) for e in events) == 15


def test_a_region_clips() -> None:
    events = [Event("a", "x", 0, 10), Event("a", "y", 20, 30), Event("a", "z", 40, 50)]
    assert clip(events, 5, 25) == [Event("a", "x", 5, 10), Event("a", "y", 20, 25)]


@given(EVENTS)
def test_names_add_up_to_the_threads(events: list[Event]) -> None:
    """Against a count instant by instant."""
    expected: dict[str, float] = {}
    for thread in {e.thread for e in events}:
        for instant in range(45):
            running = [e for e in events if e.thread == thread and e.start_ns <= instant < e.end_ns]
            if running:
                expected[thread] = expected.get(thread, 0) + 1
    assert busy_by_thread(events) == expected
    assert sum(busy_by_name(events).values()) == sum(expected.values())
    raw = sum(e.end_ns - e.start_ns for e in events)
    assert sum(expected.values()) <= raw
