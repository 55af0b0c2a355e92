"""Points in time as people read them."""

from datetime import UTC, datetime, timedelta, timezone

from fila_cluster.figures import clock, distance, moment

AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def test_a_moment_is_shown_in_utc_to_the_millisecond() -> None:
    assert moment(AT.astimezone(timezone(timedelta(hours=5)))) == "2026-01-02 03:04:05.678 UTC"


def test_tables_have_the_day_only_of_what_is_long_ago() -> None:
    assert clock(AT, AT + timedelta(hours=3)) == "03:04:05"
    assert clock(AT, AT + timedelta(days=3)) == "2026-01-02 03:04"


def test_a_distance_looks_both_ways() -> None:
    assert distance(AT, AT + timedelta(minutes=5)) == "5 m ago"
    assert distance(AT, AT - timedelta(seconds=5)) == "in 5.0 s"
