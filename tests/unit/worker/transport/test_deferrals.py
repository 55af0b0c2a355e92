"""Answers to deferrals wait until the routers have had the throttle keys parked by all workers."""

from fila_proto_zmq.commands import Done, Park, Receive, Settle
from fila_worker.core.effects import Answer, ClientCall, Post
from fila_worker.process.shard_process import ShardProcess
from fila_worker.transport.deferrals import WAIT_MS_MAX, Deferrals

SETTLED = Answer(ClientCall(b"c", 1, "q", 0), Settle.opcode, Done())
OTHER = Answer(ClientCall(b"c", 2, "q", 0), Receive.opcode, Done())
PARK = Post(Park({"api": 60_000}))
ONE, TWO = (0, 7), (1, 7)
"""Requests to two routers, with the same number."""


class Routers:
    """Two routers. ``confirmed``: the requests that they have confirmed."""

    def __init__(self) -> None:
        self.asked: list[dict[str, int]] = []
        self.confirmed: list[tuple[int, int]] = []

    def park(self, parks: dict[str, int], now_ms: int) -> set[tuple[int, int]]:
        self.asked.append(parks)
        return {ONE, TWO}

    def take_confirmed(self) -> list[tuple[int, int]]:
        return self.confirmed


def test_answers_to_settlements_wait_until_all_have_confirmed() -> None:
    deferrals = Deferrals(Routers())
    assert deferrals.hold([PARK, SETTLED, OTHER], {ONE, TWO}, 0) == [OTHER]
    assert deferrals.release([ONE], 1) == []
    assert deferrals.release([ONE], 2) == []
    assert deferrals.release([TWO], 3) == [SETTLED]


def test_they_go_in_the_end_without_a_confirmation() -> None:
    deferrals = Deferrals(Routers())
    deferrals.hold([SETTLED], {ONE, TWO}, 0)
    assert deferrals.release([ONE], WAIT_MS_MAX - 1) == []
    assert deferrals.release([], WAIT_MS_MAX) == [SETTLED]
    assert deferrals.release([TWO], WAIT_MS_MAX) == []


def test_each_turn_waits_for_its_own_requests() -> None:
    deferrals = Deferrals(Routers())
    later = Answer(ClientCall(b"c", 3, "q", 0), Settle.opcode, Done())
    deferrals.hold([SETTLED], {ONE}, 0)
    deferrals.hold([later], {(0, 8)}, 0)
    assert deferrals.release([(0, 8)], 1) == [later]
    assert deferrals.release([ONE], 2) == [SETTLED]


def test_what_a_turn_parks_is_asked_of_the_routers_once() -> None:
    routers = Routers()
    deferrals = Deferrals(routers)
    ShardProcess([], 1).add(deferrals, 0)
    later = Post(Park({"db": 1}))
    assert not deferrals.on_post(PARK)
    assert not deferrals.on_post(later)
    assert deferrals.sift([OTHER, PARK, later, SETTLED], 0) == [OTHER]
    assert (routers.asked, deferrals.acts, deferrals.process.answers_wait) == ([{"api": 60_000, "db": 1}], True, True)
    routers.confirmed = [ONE, TWO]
    assert deferrals.sift([OTHER], 1) == [SETTLED, OTHER]
    assert (len(routers.asked), deferrals.acts, deferrals.process.answers_wait) == (1, False, False)


def test_a_worker_that_has_all_shards_asks_no_router() -> None:
    deferrals = Deferrals(Routers())
    ShardProcess([], 0).add(deferrals, 0)
    deferrals.on_post(PARK)
    assert not deferrals.acts
