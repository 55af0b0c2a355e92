"""Answers to deferrals wait until the routers have had the throttle keys parked by all workers."""

from fila_proto_zmq.commands import Done, Park, Receive, Settle
from fila_worker.core.effects import Answer, Call, Post
from fila_worker.transport.deferrals import WAIT_MS_MAX, Deferrals, parked_by

SETTLED = Answer(Call(b"c", 1, "q", 0), Settle.opcode, Done())
OTHER = Answer(Call(b"c", 2, "q", 0), Receive.opcode, Done())
PARK = Post(Park({"api": 60_000}))
ONE, TWO = (0, 7), (1, 7)
"""Requests to two routers, with the same number."""


def test_answers_to_settlements_wait_until_all_have_confirmed() -> None:
    deferrals = Deferrals()
    assert deferrals.hold([PARK, SETTLED, OTHER], {ONE, TWO}, 0) == [OTHER]
    assert deferrals.waiting
    assert deferrals.release([ONE], 1) == []
    assert deferrals.release([ONE], 2) == []
    assert deferrals.release([TWO], 3) == [SETTLED]
    assert not deferrals.waiting


def test_they_go_in_the_end_without_a_confirmation() -> None:
    deferrals = Deferrals()
    deferrals.hold([SETTLED], {ONE, TWO}, 0)
    assert deferrals.release([ONE], WAIT_MS_MAX - 1) == []
    assert deferrals.release([], WAIT_MS_MAX) == [SETTLED]
    assert deferrals.release([TWO], WAIT_MS_MAX) == []


def test_each_turn_waits_for_its_own_requests() -> None:
    deferrals = Deferrals()
    later = Answer(Call(b"c", 3, "q", 0), Settle.opcode, Done())
    deferrals.hold([SETTLED], {ONE}, 0)
    deferrals.hold([later], {(0, 8)}, 0)
    assert deferrals.release([(0, 8)], 1) == [later]
    assert deferrals.release([ONE], 2) == [SETTLED]


def test_what_a_turn_parks_is_found_among_its_effects() -> None:
    assert parked_by([OTHER, PARK, Post(Park({"db": 1}))]) == {"api": 60_000, "db": 1}
