"""How the router gathers which host leads and follows which shard: a worker that does not answer is named."""

from fila_proto_zmq.codec import encode_body, to_fault
from fila_proto_zmq.commands import GetHosts, HostCopy, HostList, HostWorker, ShardOutage
from fila_proto_zmq.errors import InvalidFrameError, ShardUnavailableError
from fila_proto_zmq.frames import ERROR, REPLY, pack_header
from fila_router.core.fan_in import METRICS_MS_MAX
from tests.unit.router.desk import CLIENT, Desk
from tests.unit.router.workers.test_unserved_shards import QUEUES

FOLLOWED = ShardOutage(1, "following", "this host follows it")
WAITING_FOR_LOG = ShardOutage(1, "no_quorum", "the log confirms nothing")


def two_hosts() -> Desk:
    desk = Desk(2)
    desk.register("worker-0", shards=(0, 1))
    desk.register("worker-1", shards=(), outages=[ShardOutage(0, "following", "this host follows it"), FOLLOWED])
    return desk


def ask(desk: Desk) -> dict[str, int]:
    assert desk.ask(GetHosts(), key=b"") is None
    return desk.questions(GetHosts.opcode)


def seen(worker: str) -> HostWorker:
    return HostWorker(worker[-1], worker, "", [HostCopy(0, "follows")])


def answer(desk: Desk, worker: str, request: int, body: bytes | None = None, flags: int = REPLY) -> None:
    header = pack_header(GetHosts.opcode, request, flags)
    told = encode_body(HostList([seen(worker)])) if body is None else body
    assert not desk.router.from_worker(worker.encode(), b"", header, b"", told, desk.now_ms)


def told(desk: Desk) -> HostList:
    (answer,) = desk.answers()
    assert answer.client == CLIENT
    assert isinstance(answer.content, HostList)
    return answer.content


def test_all_workers_are_asked_and_stand_by_name():
    desk = two_hosts()
    asked = ask(desk)
    for worker in ("worker-1", "worker-0"):
        assert desk.answers() == []
        answer(desk, worker, asked[worker])
    assert told(desk) == HostList([seen("worker-0"), seen("worker-1")], 2, [], [0, 1])


def test_one_that_is_down_is_not_asked_and_is_named():
    desk = two_hosts()
    desk.unreachable("worker-0")
    desk.answers()
    asked = ask(desk)
    assert list(asked) == ["worker-1"]
    answer(desk, "worker-1", asked["worker-1"])
    assert told(desk) == HostList([seen("worker-1")], 2, ["worker-0"], [])


def test_one_that_does_not_answer_in_time_or_answers_nonsense_is_named():
    desk = two_hosts()
    asked = ask(desk)
    answer(desk, "worker-0", asked["worker-0"])
    desk.pass_ms(METRICS_MS_MAX, "worker-0", "worker-1")
    assert told(desk).silent == ["worker-1"]
    asked = ask(desk)
    answer(desk, "worker-0", asked["worker-0"])
    answer(desk, "worker-1", asked["worker-1"], encode_body(to_fault(InvalidFrameError("unknown opcode 59"))), REPLY | ERROR)
    assert told(desk).silent == ["worker-1"]


def test_one_whose_shard_changes_hands_meanwhile_is_still_waited_for():
    """It registers anew at a take-over: that is when somebody looks."""
    desk = two_hosts()
    asked = ask(desk)
    answer(desk, "worker-1", asked["worker-1"])
    desk.register("worker-0", shards=(0,), outages=[FOLLOWED])
    desk.answers()
    answer(desk, "worker-0", asked["worker-0"])
    assert told(desk) == HostList([seen("worker-0"), seen("worker-1")], 2, [], [0])


def test_one_that_is_started_again_meanwhile_is_not():
    desk = two_hosts()
    asked = ask(desk)
    answer(desk, "worker-1", asked["worker-1"])
    desk.register("worker-0", shards=(0, 1), epoch=2, pid=99)
    assert told(desk).silent == ["worker-0"]


def test_it_is_never_refused_because_all_are_down():
    desk = two_hosts()
    desk.unreachable("worker-0")
    desk.unreachable("worker-1")
    desk.answers()
    assert ask(desk) == {}
    assert told(desk) == HostList([], 2, ["worker-0", "worker-1"])


def test_a_cluster_without_a_replicated_log_has_no_hosts_and_nobody_is_missing():
    desk = Desk(2)
    desk.register("worker-0", shards=(0, 1))
    asked = ask(desk)
    answer(desk, "worker-0", asked["worker-0"], encode_body(HostList([])))
    assert told(desk) == HostList([], 2, [], [0, 1])


# --- what clients of a shard without a leader hear --------------------------------------------------------------------------


def refusal(desk: Desk) -> ShardUnavailableError:
    assert desk.enqueue(QUEUES[1]) is None
    error = desk.error()
    assert isinstance(error, ShardUnavailableError)
    return error


def test_a_shard_whose_leader_is_lost_waits_for_a_standby():
    desk = two_hosts()
    desk.unreachable("worker-0")
    desk.answers()
    error = refusal(desk)
    assert str(error).startswith("no host leads shard 1 now: a standby takes over in at most 10 s")
    assert error.details["state"] == "following"


def test_a_leader_that_waits_for_its_log_is_asked_before_the_followers():
    desk = two_hosts()
    desk.register("worker-0", shards=(0,), outages=[FOLLOWED])
    desk.register("worker-1", shards=(), outages=[WAITING_FOR_LOG])
    error = refusal(desk)
    assert str(error).startswith("shard 1 waits for its log: the log confirms nothing")
    assert error.details["state"] == "no_quorum"
