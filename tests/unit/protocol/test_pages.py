"""Pages of several workers make one page, which lacks nothing before its end."""

from fila_proto_zmq.commands import ScheduleList, ScheduleView, joined_schedules


def page(*names: str, more: bool = False) -> ScheduleList:
    return ScheduleList([ScheduleView(name, "q", "", 1000, "UTC", "once", 0, 0, 0) for name in names], more)


def names(joined: ScheduleList) -> list[str]:
    return [each.name for each in joined.schedules]


def test_whole_lists_are_merged_by_name() -> None:
    whole = joined_schedules([page("a", "d"), page(), page("b", "c")])
    assert (names(whole), whole.more) == (["a", "b", "c", "d"], False)


def test_a_page_ends_where_one_of_its_parts_does() -> None:
    first = joined_schedules([page("a", "c", more=True), page("b", "d", "e")])
    assert (names(first), first.more) == (["a", "b", "c"], True)
