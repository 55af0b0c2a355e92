"""Tokens over the router: whose frames count, where grants go, and what a worker's loss means for its tokens."""

import pytest

from fila_proto_zmq.codec import decode_body
from fila_proto_zmq.commands import Grants, Tokens, TokenWant
from fila_proto_zmq.frames import unpack_header
from tests.unit.router.desk import Desk

TOKEN = 1_000_000


@pytest.fixture
def desk() -> Desk:
    """Two workers, a bucket that a worker brought: 10 tokens a second, of which 5 have come in."""
    desk = Desk(shards=3)
    desk.register("worker-0", shards=(0, 2), config_version=1, config={"throttle:api:rate": "10"})
    desk.register("worker-1", shards=(1,), config_version=1)
    desk.now_ms += 500
    return desk


def want(desk: Desk, worker: str, shard: int, most: int, consumed: int = 0, session: int = 1) -> None:
    tokens = Tokens(shard, session, [TokenWant(["api"], TOKEN, most * TOKEN, consumed * TOKEN, 0)])
    desk.mention(worker, tokens)


def granted(desk: Desk) -> list[tuple[str, int, int]]:
    """Worker, shard and total of each grant."""
    desk.router.serve(desk.now_ms)
    return [
        (worker, told.shard, grant.granted // TOKEN)
        for worker, told in desk.told()
        if isinstance(told, Grants)
        for grant in told.grants
        if not grant.wait_ms
    ]


def test_grants_go_to_the_worker_of_the_shard_and_are_answers_to_nothing(desk: Desk):
    want(desk, "worker-0", 2, 1)
    want(desk, "worker-1", 1, 1)
    desk.router.serve(desk.now_ms)
    frames = desk.router.outgoing.to_workers
    assert [frame[0] for frame in frames] == [b"worker-0", b"worker-1"]
    for _, client, header, key, body in frames:
        assert (client, unpack_header(header), key) == (b"", (Grants.opcode, 0, 0, 0, 1), b"")
        assert decode_body(Grants, body).grants[0].granted == TOKEN


def test_the_router_has_a_deadline_while_a_shard_waits(desk: Desk):
    assert desk.router.next_due(desk.now_ms) is None
    want(desk, "worker-0", 0, 5)
    assert desk.router.next_due(desk.now_ms) == 0
    assert granted(desk) == [("worker-0", 0, 5)]
    want(desk, "worker-0", 0, 5, consumed=5)
    granted(desk)
    assert desk.router.next_due(desk.now_ms) == 100
    assert granted(desk) == []
    desk.now_ms += 100
    assert granted(desk) == [("worker-0", 0, 6)]


@pytest.mark.parametrize(("worker", "shard"), [("worker-1", 0), ("stranger", 0), ("worker-0", 3), ("worker-0", -1)])
def test_only_a_shard_s_owner_is_heard(desk: Desk, worker: str, shard: int):
    want(desk, worker, shard, 1)
    assert granted(desk) == []


def test_a_lost_worker_s_tokens_count_as_spent(desk: Desk):
    want(desk, "worker-0", 0, 5)
    assert granted(desk) == [("worker-0", 0, 5)]
    want(desk, "worker-1", 1, 5)
    desk.now_ms += 10_000
    assert granted(desk) == [("worker-1", 1, 5)]  # the other half of the burst
    want(desk, "worker-1", 1, 5, consumed=5)
    desk.now_ms += 10_000
    assert granted(desk) == [("worker-1", 1, 10)]
    desk.unreachable("worker-0")
    want(desk, "worker-1", 1, 10, consumed=10)
    desk.now_ms += 1000
    assert granted(desk) == [("worker-1", 1, 20)]


def test_a_worker_that_comes_back_by_any_frame_goes_on_with_what_it_held(desk: Desk):
    want(desk, "worker-0", 0, 5)
    granted(desk)
    desk.unreachable("worker-0")
    desk.pulse("worker-0")
    want(desk, "worker-0", 0, 1, consumed=5)
    desk.now_ms += 100
    assert granted(desk) == [("worker-0", 0, 6)]


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_registration_ends_the_sessions_of_a_worker_s_shards(desk: Desk, epoch: int):
    want(desk, "worker-0", 0, 5)
    granted(desk)
    desk.register("worker-0", shards=(0, 2), epoch=epoch, config_version=1, config={"throttle:api:rate": "10"})
    desk.now_ms += 1000
    want(desk, "worker-0", 0, 20, session=2)
    assert granted(desk) == [("worker-0", 0, 10)]


def test_a_shard_that_moved_is_granted_to_its_new_worker(desk: Desk):
    want(desk, "worker-0", 2, 5)
    granted(desk)
    want(desk, "worker-0", 2, 5, consumed=5)
    desk.register("worker-1", shards=(1, 2), epoch=2, config_version=1)
    desk.now_ms += 1000
    assert granted(desk) == []
    want(desk, "worker-1", 2, 3)
    assert granted(desk) == [("worker-1", 2, 3)]


def test_a_leaving_worker_is_granted_nothing(desk: Desk):
    desk.leave("worker-1")
    want(desk, "worker-1", 1, 3)
    assert granted(desk) == []


def test_idle_accounts_are_forgotten(desk: Desk):
    desk.mention("worker-0", Tokens(0, 1, [TokenWant(["api"], 0, 0, 0, 0)]))
    bank = desk.router._bank
    assert bank.sessions[0].accounts
    desk.pass_ms(80_000, "worker-0", "worker-1")
    assert not bank.sessions[0].accounts


def test_nonsense_is_not_answered(desk: Desk):
    for opcode in (Tokens.opcode, 86, 90, 91, 92, 93):
        header = bytes.fromhex(f"464301{opcode:02x}") + bytes(14)
        for body in (b"", b"\xc1", b"\x90", b"\x91\xa1x", b"\x92\x91"):
            desk.router.from_worker(b"worker-0", b"", header, b"", body, desk.now_ms)
    assert desk.router.outgoing.to_workers == []
