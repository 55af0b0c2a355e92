"""What becomes of a client's frame."""

import random

import pytest

from fila_proto_zmq.commands import (
    BY_OPCODE,
    ClusterStatus,
    CreateQueue,
    Enqueue,
    GetClusterStatus,
    GetQueueStats,
    Hello,
    Leave,
    Pulse,
    QueueOptions,
    Receive,
    Register,
    Settle,
    Welcome,
    WorkerStatus,
)  # fmt: skip
from fila_proto_zmq.errors import (
    InvalidArgumentError,
    InvalidFrameError,
    OverloadedError,
    ShardUnavailableError,
    UnsupportedVersionError,
)  # fmt: skip
from fila_proto_zmq.frames import REPLY, pack_header
from fila_proto_zmq.names import shard_of
from fila_router.core.limits import RouterLimits
from tests.unit.router.desk import CLIENT, QUEUE, Desk


def test_a_frame_goes_to_the_worker_of_its_queue_s_shard():
    desk = Desk(shards=2)
    desk.register("worker-0", shards=(0,))
    desk.register("worker-1", shards=(1,))
    for name in ("orders", "invoices", "a", "b", "c"):
        assert desk.enqueue(name.encode()) == f"worker-{shard_of(name, 2)}".encode()
    assert desk.answers() == []


def test_bodies_are_not_read():
    desk = Desk()
    desk.register()
    assert desk.frame(pack_header(Enqueue.opcode, 1), body=b"\xc1 garbage") == b"worker-0"


def test_an_answer_finds_its_client_once():
    desk = Desk()
    desk.register()
    desk.enqueue()
    assert desk.reply(1)
    assert not desk.reply(1)
    assert not desk.reply(2)


def test_an_unserved_shard_is_unavailable_at_once():
    desk = Desk()
    assert desk.enqueue() is None
    (answer,) = desk.answers()
    assert (answer.client, answer.request, answer.key) == (CLIENT, 1, QUEUE)
    error = answer.content
    assert isinstance(error, ShardUnavailableError)
    assert error.details == {"refused": True, "shard": 0}
    assert error.retry_after == 0.2


def test_too_much_in_flight_is_refused_with_a_time_to_come_again():
    desk = Desk(limits=RouterLimits(calls_max=4))
    desk.register()
    assert desk.enqueue()
    assert desk.enqueue()
    assert desk.enqueue() is None
    error = desk.error()
    assert isinstance(error, OverloadedError)
    assert error.details["refused"] is True
    assert error.retry_after
    assert desk.ask(Settle(1, [])) == b"worker-0"
    desk.reply(1)
    desk.reply(2)
    assert desk.enqueue() == b"worker-0"


def test_what_is_open_is_not_forwarded_again():
    desk = Desk()
    desk.register()
    header = pack_header(Enqueue.opcode, 7)
    assert desk.frame(header) == b"worker-0"
    assert desk.frame(header) is None
    assert desk.answers() == [], "the answer to the first is on its way"
    assert desk.reply(7)
    assert desk.frame(header) == b"worker-0"


def test_hello_is_welcomed():
    desk = Desk(shards=3)
    desk.ask(Hello([1]), key=b"")
    (answer,) = desk.answers()
    assert isinstance(answer.content, Welcome)
    assert answer.content == Welcome(1, "9.9", 3, 15_000, 1 << 24, answer.content.session)


def test_hello_is_understood_in_the_header_of_any_version():
    desk = Desk()
    desk.ask(Hello([7, 1]), key=b"", version=7)
    (answer,) = desk.answers()
    assert isinstance(answer.content, Welcome)
    assert answer.content.version == 1


def test_no_common_version_is_said_so():
    desk = Desk()
    desk.ask(Hello([7, 8]), key=b"", version=7)
    error = desk.error()
    assert isinstance(error, UnsupportedVersionError)
    assert error.details == {"versions": [1]}


def test_another_version_is_refused_under_its_request_id():
    desk = Desk()
    desk.register()
    assert desk.frame(pack_header(Enqueue.opcode, 77, version=2)) is None
    (answer,) = desk.answers()
    assert answer.request == 77
    assert isinstance(answer.content, UnsupportedVersionError)


def test_status_lists_the_workers():
    desk = Desk(shards=2)
    desk.register("worker-1", shards=(1,))
    desk.register("worker-0", shards=(0,))
    desk.pulse("worker-0")
    desk.ask(GetClusterStatus(), key=b"")
    (answer,) = desk.answers()
    assert answer.content == ClusterStatus(
        "9.9", 2, [WorkerStatus("worker-0", 42, "up", [0], 1000, 3), WorkerStatus("worker-1", 42, "up", [1], 0, 0)]
    )


@pytest.mark.parametrize("key", [b"", b"\xff", b"no such name!", b"a/b/c", b"x" * 201])
def test_a_bad_queue_name_is_an_invalid_argument(key: bytes):
    desk = Desk()
    desk.register()
    assert desk.ask(GetQueueStats(), key=key) is None
    assert isinstance(desk.error(), InvalidArgumentError)


@pytest.mark.parametrize("command", [Register("x", 1, "v", [(0, 99)]), Pulse(1, 1), Leave()])
def test_a_client_is_no_worker(command):
    desk = Desk()
    desk.register()
    assert desk.ask(command) is None
    error = desk.error()
    assert isinstance(error, InvalidFrameError)
    assert "is for workers" in error.message
    assert desk.enqueue() == b"worker-0"


def test_an_unknown_opcode_is_an_invalid_frame():
    desk = Desk()
    assert desk.frame(pack_header(250, 9)) is None
    (answer,) = desk.answers()
    assert answer.request == 9
    assert isinstance(answer.content, InvalidFrameError)
    assert "unknown opcode 250" in answer.content.message


def test_flags_in_a_request_are_an_invalid_frame():
    desk = Desk()
    desk.register()
    assert desk.frame(pack_header(Enqueue.opcode, 1, REPLY)) is None
    assert "flags" in desk.error().message


@pytest.mark.parametrize(
    "header", [b"", b"FC", b"GET / HTTP/1.1\r\n\r\n", bytes(18), pack_header(20)[:-1], pack_header(20) + b"\0"]
)
def test_an_unreadable_header_is_an_invalid_frame(header: bytes):
    desk = Desk()
    desk.register()
    assert desk.frame(header) is None
    (answer,) = desk.answers()
    assert answer.request == 0
    assert isinstance(answer.content, InvalidFrameError)


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x91\x01", b"\x92\x90\xa0" + b"\x91" * 100_000, b"\x93\x90\xa0" + b"\x91" * 100_000]
)
def test_a_bad_body_of_the_router_s_own_commands_is_an_invalid_frame(body: bytes):
    desk = Desk()
    desk.frame(pack_header(Hello.opcode, 1), b"", body)
    assert isinstance(desk.error(), (InvalidFrameError, UnsupportedVersionError))


def test_a_frame_of_too_few_or_too_many_parts_is_an_invalid_frame():
    desk = Desk()
    desk.router.malformed(CLIENT, pack_header(Enqueue.opcode, 5), 0)
    (answer,) = desk.answers()
    assert answer.request == 5
    assert isinstance(answer.content, InvalidFrameError)
    desk.router.malformed(CLIENT, b"?", 0)
    assert isinstance(desk.error(), InvalidFrameError)


def test_random_frames_never_raise_and_disturb_no_client():
    desk = Desk()
    desk.register()
    chance = random.Random(7)
    for _ in range(5000):
        header = bytearray(pack_header(chance.choice([*BY_OPCODE, 0, 99]), chance.randrange(1 << 64)))
        for _ in range(chance.randrange(4)):
            header[chance.randrange(18)] = chance.randrange(256)
        parts = [
            bytes(header)[: chance.choice([18, 18, 18, 17, 3])],
            chance.randbytes(chance.randrange(8)),
            chance.randbytes(12),
        ]
        desk.frame(*parts)
        desk.router.from_worker(b"worker-0", chance.choice([b"", CLIENT]), *parts, desk.now_ms)
        desk.router.from_worker(b"stranger", chance.choice([b"", CLIENT]), *parts, desk.now_ms)
    desk.answers()
    desk.register()
    assert desk.enqueue(client=b"\1other") == b"worker-0"
    assert desk.reply(desk.last_request, client=b"\1other")


def test_commands_of_all_queues_are_forwarded():
    desk = Desk()
    desk.register()
    for command in (CreateQueue(QueueOptions()), Receive(), Settle(1, []), GetQueueStats()):
        assert desk.ask(command) == b"worker-0"
