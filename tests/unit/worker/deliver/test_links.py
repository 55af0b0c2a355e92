"""By which link answers and deliveries go, when a client comes by another one."""

from fila_proto_zmq.commands import Command, Enqueue, Extend, Receive, Reserve, Settle, Subscribe, Verb
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.effects import Answer, ClientCall, Push
from tests.support.shard.shard import ShardHarness, limited


def say(shard: ShardHarness, command: Command, request: int, link: int) -> list[tuple[str, int]]:
    """The effects of a command's turn, each with its link."""
    shard.shard.apply(ClientCall(b"c1", request, "q", shard.now_ms, link), command)
    return went(shard)


def went(shard: ShardHarness) -> list[tuple[str, int]]:
    effects = shard.shard.turn(shard.now_ms)
    return [
        ("answer", effect.call.link) if isinstance(effect, Answer) else ("push", effect.link)
        for effect in effects
        if isinstance(effect, (Answer, Push)) and effect.client == b"c1"
    ]


def test_deliveries_go_by_the_link_of_the_latest_frame_of_their_subscription(shard: ShardHarness) -> None:
    assert say(shard, Subscribe(1, 10, [], 0), 100, 1) == [("answer", 1)]
    shard.shard.apply(*enqueue(shard))
    assert went(shard) == [("push", 1)]
    say(shard, Subscribe(1, 10, [], 0), 102, 2)
    shard.shard.apply(*enqueue(shard))
    assert ("push", 2) in went(shard)
    say(shard, Subscribe(1, 10, [], 0), 101, 1)  # it was long on its way
    shard.shard.apply(*enqueue(shard))
    assert went(shard) == [("push", 2)]


def test_a_receive_that_waits_is_answered_by_the_link_by_which_it_came_last(shard: ShardHarness) -> None:
    assert say(shard, Receive(1, 10_000), 100, 1) == []
    assert say(shard, Receive(1, 10_000), 100, 2) == []
    shard.shard.apply(*enqueue(shard))
    assert went(shard) == [("answer", 2)]


def test_a_reservation_that_waits_is_answered_by_the_link_by_which_it_came_last(shard: ShardHarness) -> None:
    assert say(shard, Reserve("r", 0, 1, 60_000, 10_000), 100, 1) == []
    assert say(shard, Reserve("r", 0, 1, 60_000, 10_000), 100, 2) == []
    shard.shard.apply(*enqueue(shard))
    assert went(shard) == [("answer", 2)]


def test_what_is_settled_in_steps_is_answered_by_the_link_of_its_request() -> None:
    shard = ShardHarness(settings=limited(step_effort=2))
    shard.create("q")
    shard.enqueue(*[b"%d" % number for number in range(20)])
    for command in (lambda fences: Extend(fences, 60_000), lambda fences: Settle(Verb.ACK, fences)):
        got = shard.receive(10)
        fences = [(each.lease, [each.index]) for each in got]
        effects = say(shard, command(fences), 1000, 2)
        for _ in range(50):
            shard.now_ms += 10
            effects += went(shard)
        assert effects == [("answer", 2)]


def enqueue(shard: ShardHarness) -> tuple[ClientCall, Command]:
    shard.requests += 1
    return ClientCall(b"producer", shard.requests, "q", shard.now_ms), Enqueue([seal_envelope(b"x")])
