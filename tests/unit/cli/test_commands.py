"""What commands ask a broker for, and how they show what it says."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from fila_cluster.cli.root import root
from fila_cluster.errors import InvalidConfigError, MessageNotFoundError, QueueNotFoundError, ShardUnavailableError
from fila_proto_zmq import commands
from fila_proto_zmq.commands import (
    Browse,
    Browsed,
    Cancel,
    Cancelled,
    ConfigChange,
    ConfigValues,
    CreateQueue,
    Enqueue,
    ListConfig,
    ListQueues,
    MessageView,
    Pause,
    Purged,
    PurgeQueue,
    QueueList,
    QueueOptions,
    Redrive,
    Redriven,
    SetConfig,
    UpdateQueue,
)
from fila_proto_zmq.errors import PartitionedError
from fila_proto_zmq.ids import format_id, high_half, low_half
from tests.unit.client.peer import BORN_MS, answering, broker, record

INFO = commands.QueueInfo("orders", 1, 2, 3, 4, True, False, 0)
ID = format_id(high_half(BORN_MS, 3), low_half(9))
SCRIPT = "function on_enqueue(msg) return {} end"


@pytest.fixture
def run():
    """Run a command line against a broker that gives these answers: exit code, output, errors, and what was asked."""

    def run(*arguments, **answers):
        with broker(answering(**answers)) as peer:
            result = CliRunner().invoke(root, ["--endpoint", peer.endpoint, *arguments])
            return result.exit_code, result.stdout, result.stderr, [(sent.key, sent.command) for sent in peer.seen[1:]]

    return run


@pytest.fixture
def asked(run):
    """What a command that works asks for."""

    def asked(*arguments, **answers):
        code, _, errors, seen = run(*arguments, **answers)
        assert (code, errors) == (0, "")
        return seen

    return asked


@pytest.fixture
def shown(run):
    """What a command that works shows."""

    def shown(*arguments, **answers):
        code, output, errors, _ = run(*arguments, **answers)
        assert (code, errors) == (0, "")
        assert max(map(len, output.splitlines()), default=0) <= 80 or "--json" in arguments
        return json.loads(output) if "--json" in arguments else output

    return shown


@pytest.fixture
def misused(run):
    """The error of a command that is used wrongly: no broker is asked."""

    def misused(*arguments):
        code, _, errors, seen = run(*arguments)
        assert (code, seen) == (2, [])
        return errors

    return misused


# --- queues -----------------------------------------------------------------------------------------------------------


def test_a_queue_s_options(asked, tmp_path: Path):
    file = tmp_path / "failure.lua"
    file.write_text("function on_failure(msg) return {action = 'retry'} end")
    flags = {
        "--on-enqueue": SCRIPT,
        "--on-failure": file,
        "--visibility-timeout": "5m",
        "--max-attempts": 3,
        "--dead-letter": "discard",
        "--delivery": "at_most_once",
        "--max-in-flight-per-key": 1,
        "--default-ttl": "2h",
        "--idle-expiry": "1500",
        "--lua-timeout": "20ms",
        "--lua-memory-limit": 2_000_000,
    }
    options = QueueOptions(
        visibility_timeout_ms=300_000,
        max_attempts=3,
        on_enqueue=SCRIPT,
        on_failure=file.read_text(),
        dead_letter="discard",
        delivery="at_most_once",
        max_in_flight_per_key=1,
        default_ttl_ms=7_200_000,
        idle_expiry_ms=1500,
        lua_timeout_ms=20,
        lua_memory_limit_bytes=2_000_000,
    )
    line = [str(part) for flag in flags.items() for part in flag]
    created = msgspec.structs.replace(options, partitions=1, spread="key")
    assert asked("queue", "create", "orders", *line) == [("orders", CreateQueue(created))]
    ((key, update),) = asked("queue", "update", "orders", *line)
    assert (key, update.options) == ("orders", options)
    assert len(update.given) == len(flags)


@pytest.mark.parametrize(("given", "sent"), [("8", 8), ("auto", 0)])
def test_a_queue_with_several_partitions(asked, given: str, sent: int):
    missing = {"DescribeQueue": QueueNotFoundError("no queue")}
    line = ["queue", "create", "orders", "--partitions", given, "--spread", "message"]
    _, (key, create), *_ = asked(*line, CreatePartitioned=ConfigChange(1, {}, False), **missing)
    assert (key, create.queue, create.options.partitions, create.options.spread) == ("", "orders", sent, "message")


def test_an_update_says_what_changes_and_what_goes_back(asked):
    seen = asked("queue", "update", "orders", "--max-attempts", "5", "--reset", "on-failure", "--reset", "default-ttl")
    assert seen == [("orders", UpdateQueue(QueueOptions(max_attempts=5), ["max_attempts", "on_failure", "default_ttl_ms"]))]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("queue", "update", "orders"), "nothing to change"),
        (("queue", "update", "orders", "--max-attempts", "1", "--reset", "max-attempts"), "either --max-attempts or"),
        (("queue", "update", "orders", "--reset", "speed"), "--reset"),
        (("queue", "create", "orders", "--delivery", "exactly_once"), "at_least_once"),
        (("queue", "create", "orders", "--on-enqueue", "missing.lua"), "there is no such file"),
        (("queue", "create", "orders", "--default-ttl", "soon"), "500ms, 30s, 5m, 2h"),
        (("queue", "browse", "orders", "--limit", "0"), "--limit"),
        (("queue", "browse", "orders", "--state", "dead"), "--state"),
        (("queue", "pause"), "Missing argument"),
        (("message", "cancel", "orders"), "Missing argument"),
        (("config", "set", "key"), "Missing argument"),
        (("config", "nonsense"), "No such command"),
        (("enqueue", "q", "--file", "y", "--key", "k", "--ttl", "5"), "leave out --key, --ttl"),
        (("enqueue", "q", "--file", "y", "--throttle-key", "k"), "leave out --throttle-key"),
        (("enqueue", "q", "x", "--cost", "much"), "--cost"),
    ],
)
def test_misuse(misused, arguments, reason):
    assert reason in misused(*arguments)


def test_pausing_resuming_and_purging(asked, shown):
    assert asked("queue", "pause", "orders") == [("orders", Pause(True))]
    assert asked("queue", "resume", "orders", "--key", "k") == [("orders", Pause(False, "k"))]
    assert asked("queue", "purge", "orders", "--key", "k", PurgeQueue=Purged(1, 0)) == [("orders", PurgeQueue("k"))]
    assert shown("queue", "pause", "orders", "--key", "k") == "paused k of orders\n"
    assert shown("queue", "resume", "orders") == "resumed orders\n"
    assert shown("queue", "purge", "orders", PurgeQueue=Purged(1234, 0)) == "purged: 1,234\n"
    assert shown("--json", "queue", "purge", "orders", PurgeQueue=Purged(1234, 0)) == {"purged": 1234}
    assert shown("--json", "queue", "pause", "orders") == {"name": "orders", "fairness_key": None}


def test_a_paused_queue_is_shown_as_such(shown):
    assert shown("queue", "list", ListQueues=QueueList([INFO])).splitlines()[1].split()[-1] == "paused"


def test_active_queues(asked):
    assert asked("queue", "list", "--active", "--prefix", "o", ListQueues=QueueList([INFO])) == [("", ListQueues("o", True))]


def test_inspecting_shows_throttles_and_pauses(shown):
    keys = [commands.KeyStats("acme", 1, 1, 0, 0, 0.5, 7, True), commands.KeyStats("other", 1, 1, 0, 0, 0.0, 7, False)]
    throttles = [commands.ThrottleStats("provider", 5.0, 10.0, 2.25)]
    stats = commands.QueueStats(INFO, 0, 1000, *[0] * 6, keys, throttles)
    text = shown("queue", "inspect", "orders", GetQueueStats=stats)
    assert text.startswith("orders is paused\n")
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert rows["provider"] == ["5", "10", "2.25", "–", "0"]
    assert rows["acme"][-1] == "paused"
    assert rows["other"][-1] == "0"
    told = shown("--json", "queue", "inspect", "orders", GetQueueStats=stats)
    none = {"concurrency": None, "in_use": 0, "waiting": 0, "rate_min": None, "rate_in_force": None}
    assert told["throttles"] == [{"key": "provider", "rate": 5.0, "burst": 10.0, "tokens": 2.25, **none}]
    assert (told["paused"], told["keys"][0]["paused"]) == (True, True)


def test_inspecting_shows_the_places_of_throttle_keys(shown):
    throttles = [
        commands.ThrottleStats("provider", 5.0, 10.0, 2.25, 8, 3, 12),
        commands.ThrottleStats("llm", None, None, None, 2),
    ]
    stats = commands.QueueStats(INFO, 0, 1000, *[0] * 6, [], throttles)
    text = shown("queue", "inspect", "orders", GetQueueStats=stats)
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert rows["provider"] == ["5", "10", "2.25", "3", "of", "8", "12"]
    assert rows["llm"] == ["–", "–", "–", "0", "of", "2", "0"]


@pytest.mark.parametrize(("most", "shown_as"), [(5, "2 of 5"), (None, "2")])
def test_inspecting_shows_the_limit_of_leased_messages(shown, most, shown_as):
    stats = commands.QueueStats(msgspec.structs.replace(INFO, in_flight=2), 0, 1000, *[0] * 6, [], max_in_flight=most)
    text = shown("queue", "inspect", "orders", GetQueueStats=stats)
    assert re.search(rf"in flight +{shown_as}  ", text)
    assert shown("--json", "queue", "inspect", "orders", GetQueueStats=stats)["max_in_flight"] == most


def test_inspecting_shows_a_change_of_the_number_of_partitions(shown):
    parts = [msgspec.structs.replace(INFO, name=f"orders@{number}", paused=False, shard=number + 5) for number in range(3)]
    left = commands.PartitionLeft(1, 6, 30, 0, True, [7])
    stats = commands.QueueStats(parts[0], 0, 1000, *[0] * 6, [], move=commands.QueueMove(2, 3, 1000, [0], [1], [left]))
    refusal = PartitionedError("orders has 3 partitions", details={"partitions": 3, "spread": "key"})
    answers = {"GetQueueStats": lambda sent: stats if "@" in sent.key else refusal, "ListQueues": QueueList(parts)}
    text = shown("queue", "inspect", "orders", **answers)
    assert text.startswith("orders goes from 2 to 3 partitions: 1 of 2 drained, at least 30 messages left\n")
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert rows["0"].split() == ["0", "drained"]
    assert rows["1"].endswith("  to send on: at least 30; sent to shard 7, which has not confirmed it")
    told = shown("--json", "queue", "inspect", "orders", **answers)["move"]
    assert (told["earlier"], told["partitions"], told["drained"], told["waits_for"]) == (2, 3, [0], [1])
    assert told["left"][0]["messages"] == 30


# --- messages ---------------------------------------------------------------------------------------------------------


def view(state="pending", **fields):
    times = {"due_ms": 0, "leased_ms": 0, "lease_expires_ms": 0} | fields
    return MessageView(state, "acme", 1, [], consumer="", record=record(b"hello", 9, attempts=2), **times)


def test_browsing(asked, shown):
    flags = ["--limit", "5", "--after", ID, "--key", "acme", "--state", "delayed"]
    assert asked("queue", "browse", "orders", *flags, Browse=Browsed([], False)) == [
        ("orders", Browse(5, (high_half(BORN_MS, 3), low_half(9)), "acme", "delayed"))
    ]
    page = Browsed([view(), view("leased", lease_expires_ms=BORN_MS), view("delayed", due_ms=BORN_MS)], False)
    _, *rows = shown("queue", "browse", "orders", Browse=page).splitlines()
    assert [row.split()[:3] for row in rows] == [[ID, "acme", "pending"], [ID, "acme", "leased"], [ID, "acme", "delayed"]]
    assert [row.split()[-1] for row in rows] == ["2", "2", "2"]
    told = shown("--json", "queue", "browse", "orders", Browse=page)
    assert [(message["id"], message["payload"]) for message in told] == [(ID, "hello")] * 3
    assert told[2]["due_at"].endswith("+00:00")
    assert shown("queue", "browse", "orders", Browse=Browsed([], False)) == "no messages\n"
    assert shown("--json", "queue", "browse", "orders", Browse=Browsed([], False)) == []


def test_cancelling(asked, shown, run):
    assert asked("message", "cancel", "orders", ID, Cancel=Cancelled(True)) == [
        ("orders", Cancel(high_half(BORN_MS, 3), low_half(9)))
    ]
    assert shown("message", "cancel", "orders", ID, Cancel=Cancelled(True)) == f"cancelled {ID}\n"
    for answer, reason in ((Cancelled(False), "is leased"), (MessageNotFoundError("no such message"), "no such message")):
        code, output, errors, _ = run("message", "cancel", "orders", ID, Cancel=answer)
        assert (code, output) == (1, "")
        assert reason in errors
        assert errors.count("\n") == 1


def test_what_can_be_said_of_a_message(asked):
    flags = ["--header", "a=b", "--key", "k", "--weight", "3", "--throttle-key", "x", "--throttle-key", "y", "--cost", "2.5"]
    flags += ["--priority", "-1", "--delay", "5s", "--ttl", "2h", "--dedup-id", "d"]
    ((_, command),) = asked("enqueue", "orders", "hello", *flags)
    expected = Enqueue(command.envelopes, "k", 3, -1, 5000, 0, 0, [["x", "y"]], 2500, 7_200_000, "d")
    assert command == expected


def test_a_message_without_any_of_it(asked):
    ((_, command),) = asked("enqueue", "orders", "hello")
    assert command == Enqueue(command.envelopes)


def test_redriving_one_key(asked):
    assert asked("redrive", "orders.dlq", "--key", "k", "--count", "5", Redrive=Redriven(2, 0)) == [
        ("orders.dlq", Redrive(5, "k"))
    ]


def test_moving(asked, shown):
    seen = asked("queue", "move", "orders", "aside", "--key", "k", "--count", "5", MoveMessages=commands.Moved(2, 0))
    assert seen == [("orders", commands.MoveMessages("aside", 5, "k"))]
    assert shown("queue", "move", "orders", "aside", MoveMessages=commands.Moved(1234, 0)) == "moved: 1,234\n"
    assert shown("--json", "queue", "move", "orders", "aside", "--rate", "5", MoveMessages=commands.Moved(1, 0)) == {
        "moved": 1
    }


# --- the runtime config -----------------------------------------------------------------------------------------------


def test_setting(asked, shown):
    changed = ConfigChange(1, {}, False)
    seen = asked("config", "set", "throttle:p:rate", "-1", SetConfig=changed)
    assert seen == [("", SetConfig("throttle:p:rate", "-1"))]
    assert shown("config", "set", "k", "v", SetConfig=changed) == "k = v\n"
    assert shown("--json", "config", "set", "k", "v", SetConfig=changed) == {"key": "k", "value": "v"}


def test_a_value_that_will_not_do(run):
    code, _, errors, _ = run("config", "set", "throttle:p:rate", "x", SetConfig=InvalidConfigError("'x' is no rate"))
    assert (code, errors) == (1, "Error: 'x' is no rate\n")


def test_getting(run, shown):
    long = "long " * 100
    code, output, _, _ = run("config", "get", "k", GetConfig=ConfigValues({"k": long}))
    assert (code, output) == (0, long + "\n")
    assert shown("--json", "config", "get", "k", GetConfig=ConfigValues({"k": "v"})) == {"key": "k", "value": "v"}
    for form in ((), ("--json",)):
        code, output, errors, _ = run(*form, "config", "get", "k", GetConfig=ConfigValues({}))
        assert (code, output, errors) == (1, "", "Error: k has no value\n")


def test_listing(asked, shown):
    values = ConfigValues({"tb": "[bold]2[/]", "ta": "1"})
    assert asked("config", "list", "--prefix", "t", ListConfig=values) == [("", ListConfig("t"))]
    assert [line.split() for line in shown("config", "list", ListConfig=values).splitlines()[1:]] == [
        ["ta", "1"],
        ["tb", "[bold]2[/]"],
    ]
    assert shown("--json", "config", "list", ListConfig=values) == {"ta": "1", "tb": "[bold]2[/]"}
    assert shown("config", "list", ListConfig=ConfigValues({})) == "no keys\n"


def test_nothing_is_wrapped_in_a_pipe(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    info = commands.QueueInfo("q" * 200, 1, 2, 3, 4, False, False, 0)
    _, output, *_ = run("queue", "list", ListQueues=QueueList([info]))
    assert [line.split() for line in output.splitlines()[1:]] == [["q" * 200, "1", "2", "3", "4", "0"]]
    _, output, *_ = run("config", "set", "k", "v " * 60, SetConfig=ConfigChange(1, {"k": "v"}, False))
    assert output == f"k = {'v ' * 60}\n"


def test_deleting(asked, shown):
    seen = asked("config", "delete", "k", SetConfig=ConfigChange(2, {"k": None}, True))
    assert seen == [("", SetConfig("k", None))]
    assert shown("config", "delete", "k", SetConfig=ConfigChange(2, {"k": None}, True)) == "deleted k\n"
    assert shown("config", "delete", "k", SetConfig=ConfigChange(2, {}, False)) == "k had no value\n"
    assert shown("--json", "config", "delete", "k", SetConfig=ConfigChange(2, {}, False)) == {"key": "k", "deleted": False}


def test_throttles(asked, shown, run):
    change = ConfigChange(1, {}, True)
    seen = asked("throttle", "set", "p", "--rate", "5", "--burst", "none", SetConfig=change)
    assert seen == [("", SetConfig("throttle:p:burst", None)), ("", SetConfig("throttle:p:rate", "5"))]
    assert shown("throttle", "set", "p", "--rate", "5", "--burst", "none", SetConfig=change) == "p: rate 5, burst none\n"
    assert shown("--json", "throttle", "set", "p", "--concurrency", "2", SetConfig=change) == {"key": "p", "concurrency": "2"}
    assert run("throttle", "set", "p", "--rate", "-1")[:1] == (1,)
    assert run("throttle", "set", "p")[:1] == (2,)
    listed = commands.ThrottleList([commands.ThrottleStats("p", 5.0, 10.0, 2.25, None, 0, 1234)])
    text = shown("throttle", "list", "--prefix", "p", ListThrottles=listed)
    assert text.splitlines()[1].split() == ["p", "5", "10", "2.25", "–", "1,234"]
    listed.throttles[0].rate_in_force = 2.5
    assert "2.5 of 5" in shown("throttle", "list", ListThrottles=listed)
    assert shown("--json", "throttle", "list", ListThrottles=listed)[0]["waiting"] == 1234
    assert shown("throttle", "list", ListThrottles=commands.ThrottleList([])) == "no throttle key has a limit\n"
    assert shown("throttle", "delete", "p", SetConfig=change) == "deleted p\n"
    assert shown("throttle", "delete", "p", SetConfig=ConfigChange(1, {}, False)) == "p had no limits\n"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("queue", "update", "q", "--max-attempts", "1"), "UpdateQueue"),
        (("queue", "pause", "q"), "Pause"),
        (("queue", "browse", "q"), "Browse"),
        (("queue", "purge", "q"), "PurgeQueue"),
    ],
)
def test_a_queue_that_does_not_exist_is_one_line(run, arguments, name):
    code, output, errors, _ = run(*arguments, **{name: QueueNotFoundError("no queue 'q'")})
    assert (code, output, errors) == (1, "", "Error: no queue 'q'\n")


def test_a_list_without_all_shards_says_so(run):
    def listed(sent):
        if sent.command.partial:
            return QueueList([INFO], shards=[0])
        return ShardUnavailableError("shard 1 has no live worker", retry_after=3600)  # the client does not wait for that

    status = commands.ClusterStatus("1", 2, [])
    for options in ((), ("--active",)):
        code, output, errors, seen = run("queue", "list", *options, ListQueues=listed, GetClusterStatus=status)
        assert code == 1
        assert "orders" in output
        assert "warning: 1 of 2 shards: the queues of shard 1 are unknown: shard 1 has no live worker" in errors
        assert ("", ListQueues("", bool(options), partial=True)) in seen
    code, output, errors, _ = run("--json", "queue", "list", ListQueues=listed, GetClusterStatus=status)
    assert (code, [each["name"] for each in json.loads(output)]) == (1, ["orders"])
    assert errors.startswith("warning: 1 of 2 shards")
