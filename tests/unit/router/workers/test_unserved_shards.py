"""Shards that don't serve although their worker lives: their clients get the reason, and other clients notice nothing."""

from fila_proto_zmq.commands import GetClusterStatus, ListQueues, ShardOutage
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, ShardUnavailableError
from fila_proto_zmq.names import shard_of
from tests.unit.router.desk import Desk

QUEUES = {
    shard: next(name for name in map("q{}".format, range(99)) if shard_of(name, 2) == shard).encode() for shard in (0, 1)
}
DAMAGED = ShardOutage(1, "quarantined", "/data/shard-0001/000012.sst is damaged")
OPENING = ShardOutage(1, "opening", "it is being opened")


def refusal(desk: Desk, shard: int = 1) -> FilaError:
    assert desk.enqueue(QUEUES[shard]) is None
    return desk.error()


def test_a_shard_that_its_worker_does_not_serve_is_refused_with_the_reason():
    desk = Desk(2)
    desk.register(outages=[DAMAGED])
    error = refusal(desk)
    assert isinstance(error, ShardUnavailableError)
    assert DAMAGED.reason in str(error)
    assert error.details == {"refused": True, "shard": 1, "state": "quarantined", "reason": DAMAGED.reason}
    assert desk.enqueue(QUEUES[0]) == b"worker-0"


def test_a_list_of_all_queues_fails_with_the_reason_of_the_shard_that_does_not_serve():
    """Without that shard's queues it would be wrong."""
    desk = Desk(2)
    desk.register(outages=[DAMAGED])
    desk.ask(ListQueues(), key=b"")
    error = desk.error()
    assert isinstance(error, ShardUnavailableError)
    assert error.details == {"refused": True, "shard": 1, "state": "quarantined", "reason": DAMAGED.reason}


def test_a_worker_none_of_whose_shards_serve_is_known_and_stays():
    desk = Desk(2)
    desk.register(shards=(), outages=[OPENING])
    desk.pass_ms(10_000, "worker-0")
    desk.ask(GetClusterStatus(), b"")
    (answer,) = desk.answers()
    (worker,) = answer.content.workers  # type: ignore[union-attr]
    assert (worker.name, worker.state, worker.shards, worker.outages) == ("worker-0", "up", [], [OPENING])
    assert refusal(desk).details["state"] == "opening"  # type: ignore[attr-defined]


def test_a_worker_without_any_shard_is_refused():
    assert isinstance(Desk(2).register(shards=()), InvalidArgumentError)


def test_when_a_shard_ceases_to_serve_its_requests_are_answered_and_only_they():
    desk = Desk(2)
    desk.register(shards=(0, 1))
    for shard in (0, 1):
        desk.enqueue(QUEUES[shard])
    desk.register(shards=(0,), outages=[OPENING])
    (answer,) = desk.answers()
    assert (answer.request, isinstance(answer.content, ShardUnavailableError)) == (desk.last_request, True)
    assert "refused" not in answer.content.details  # type: ignore[union-attr]
    assert desk.reply(desk.last_request - 1), "the other shard's answer is forwarded"
    assert not desk.reply(desk.last_request), "a late one is not"


def test_a_shard_that_serves_again_is_routed_to_again():
    desk = Desk(2)
    desk.register(shards=(0, 1))
    desk.register(shards=(0,), outages=[OPENING])
    desk.register(shards=(0, 1), epoch=2)
    assert desk.enqueue(QUEUES[1]) == b"worker-0"


def test_a_shard_that_fails_and_recovers_between_two_registrations_has_its_requests_answered():
    desk = Desk(2)
    desk.register(shards=(0, 1))
    desk.enqueue(QUEUES[1])
    desk.register(shards=(0, 1), epoch=2)
    assert [answer.request for answer in desk.answers()] == [desk.last_request]


def test_the_reason_of_a_worker_that_is_lost_itself_is_none():
    desk = Desk(2)
    desk.register(outages=[DAMAGED])
    desk.unreachable("worker-0")
    assert "state" not in refusal(desk).details
