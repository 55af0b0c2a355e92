"""Each request, through each shell and each door, with each kind of key: who may do what, and what the others see.

The keys are none, a wrong one, one that has expired, one that was revoked, one that lacks the permission, and one that has it. Nothing that
is refused has an effect, and a refusal is the same whether the queue exists or not.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import click
import pytest

from fila_admission.permissions import kind_of
from fila_admission.requests import OF_A_QUEUE, OF_WORKERS
from fila_cluster import AsyncClient
from fila_cluster.cli.root import root
from fila_cluster.client.calls.request import Request as Ask
from fila_cluster.errors import PermissionDeniedError, UnauthenticatedError
from fila_proto_zmq.commands import (
    COMMANDS,
    BeginBackup,
    CloseConnection,
    Command,
    CreateByTemplate,
    CreateKey,
    CreatePartitioned,
    CreateQueue,
    CutBackup,
    DeletePartitioned,
    DeleteQueue,
    DeleteSchedule,
    DeleteTemplate,
    DrainWorker,
    Enqueue,
    GetClusterStatus,
    GetConfig,
    GetHosts,
    GetMetrics,
    GetOwnKey,
    GetPlacement,
    GetQueueStats,
    GetTemplate,
    GrantKey,
    Hello,
    KeepBackup,
    ListActs,
    ListConfig,
    ListConfigHistory,
    ListConnections,
    ListKeys,
    ListQueues,
    ListSchedules,
    ListTemplates,
    ListThrottles,
    MoveMessages,
    MoveShard,
    OpenView,
    PutSchedule,
    PutTemplate,
    QueueOptions,
    Receive,
    Reserve,
    RevokeKey,
    SetConfig,
    UndoConfig,
    UpdatePartitioned,
    UpdateQueue,
)
from fila_proto_zmq.frames import pack_header
from fila_proto_zmq.record import seal_envelope
from tests.support.cluster.cluster import PATIENCE_S, eventually
from tests.support.cluster.guarded import Guarded, guarded_cluster, refusal
from tests.unit.protocol.vectors import BODIES

SAMPLES = {type(body.struct): body.struct for body in BODIES} | {
    Enqueue: Enqueue([seal_envelope(b"")]),
    Receive: Receive(1, 0),
    Reserve: Reserve("r", 1, 0, 1000, 0),
    CreateQueue: CreateQueue(QueueOptions()),
    UpdateQueue: UpdateQueue(QueueOptions(), []),
}
REQUESTS: list[Command] = [
    SAMPLES[kind]
    for kind in COMMANDS
    if pack_header(kind.opcode)[:6] in OF_A_QUEUE  # type: ignore[misc]
]
OF_ALL_QUEUES: list[Command] = [GetMetrics()]
OF_THE_CLUSTER: list[Command] = [
    SetConfig("a", "b"), GetConfig("a"), ListConfig(), ListConfigHistory(), UndoConfig(1), ListActs(), ListConnections(),
    CloseConnection("0a1b2c3d"), BeginBackup("b"), CutBackup("b"), KeepBackup("b", 1000), MoveShard(0, "worker-0"), DrainWorker("worker-0"),
    PutTemplate("secret-*", QueueOptions()), GetTemplate("secret-*"), ListTemplates(), DeleteTemplate("secret-*"),
    CreatePartitioned("secret", QueueOptions(partitions=2)), CreateByTemplate("secret"), UpdatePartitioned("secret", QueueOptions(), []),
    DeletePartitioned("secret"), ListThrottles(),
]  # fmt: skip
OF_KEYS: list[Command] = [
    CreateKey("never", ["consume:orders"]), ListKeys(), RevokeKey("admin"), GrantKey("admin", ["consume:orders"]),
]  # fmt: skip
OPEN_TO_ALL_KEYS = (Hello, GetPlacement, GetClusterStatus, GetHosts, ListQueues, ListSchedules, GetOwnKey)
"""Requests that need a key, and no permission; a list of queues has only those that the key may see."""
KINDS = ("produce", "consume", "admin")
ENDED = ("none", "wrong", "expired", "revoked")
HIDDEN = ("secret", "no-such-queue")

CLI: list[tuple[list[str], str | None]] = [
    (["queue", "create", "{}"], "admin"), (["queue", "update", "{}", "--max-attempts", "3"], "admin"), (["queue", "delete", "{}"], "admin"),
    (["queue", "inspect", "{}"], None), (["queue", "purge", "{}"], "admin"), (["queue", "pause", "{}"], "admin"),
    (["queue", "resume", "{}"], "admin"), (["queue", "browse", "{}"], "consume"), (["redrive", "{}.dlq"], "admin"),
    (["message", "cancel", "{}", "01970000-0000-7000-8000-000000000000"], "admin"), (["enqueue", "{}", "hello"], "produce"),
    (["consume", "{}", "--count", "1", "--wait", "0"], "consume"), (["why", "{}"], None),
    (["schedule", "get", "{}"], "admin"), (["schedule", "delete", "{}"], "admin"),
]  # fmt: skip
"""Commands for a queue, and the kind of permission that they need; None: any kind."""
CLI_OF_THE_CLUSTER = [
    ["config", "set", "a", "b"], ["config", "get", "a"], ["config", "list"], ["config", "delete", "a"],
    ["template", "put", "*"], ["template", "get", "*"], ["template", "list"], ["template", "delete", "*"],
    ["auth", "key", "create", "--name", "never"], ["auth", "key", "list"], ["auth", "key", "revoke", "admin"],
    ["auth", "grant", "admin", "consume:orders"], ["auth", "show", "admin"],
]  # fmt: skip
PAGES = ("/", "/queues", "/messages", "/dead-letters", "/limits", "/config", "/hooks", "/_nicegui/anything", "/no-such-page")
PAGES_FOR_READERS = ("/metrics", "/history")


class Keys:
    """A secret of each kind. ``right(kind)`` has that permission on ``orders*``, ``lacking`` only on other queues."""

    def __init__(self, guarded: Guarded) -> None:
        everything = [f"{kind}:*" for kind in KINDS]
        self.secrets = {
            "none": "",
            "wrong": "fila_wrong",
            "expired": guarded.key("expired", *everything, expires=3.0),
            "revoked": guarded.key("revoked", *everything),
            "lacking": guarded.key("lacking", "produce:other", "consume:other"),
            "right": guarded.api_key,
        } | {kind: guarded.key(f"only-{kind}", f"{kind}:orders*") for kind in KINDS}
        guarded.revoke("revoked")
        with guarded.client(self.secrets["expired"]) as late:
            eventually(lambda: refusal(late.list_queues) is UnauthenticatedError, "the end of its time")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_cluster(tmp_path_factory.mktemp("matrix") / "data") as guarded:
        with guarded.client() as admin:
            admin.enqueue("secret", b"kept")
        yield guarded


@pytest.fixture(scope="module")
def keys(guarded: Guarded) -> Keys:
    return Keys(guarded)


@contextmanager
def nothing_changes(guarded: Guarded) -> Iterator[None]:
    """What can be seen of the cluster is the same before and after."""

    def seen() -> Any:
        with guarded.client() as admin:
            queues = [(queue.name, queue.depth, queue.in_flight, queue.paused) for queue in admin.list_queues()]
            messages = [(view.id, view.state) for view in admin.browse("secret")]
            names = [(key.name, key.allow) for key in admin.request(ListKeys()).keys]
            return queues, messages, admin.list_config(), names

    before = seen()
    yield
    assert seen() == before


# --- clients ----------------------------------------------------------------------------------------------------------


class Blocking:
    """The blocking client."""

    def __init__(self, guarded: Guarded, api_key: str, *, direct: bool) -> None:
        self._client = guarded.client(api_key, direct=direct)

    def ask(self, queue: str, command: Command) -> Any:
        return self._client.request(Ask(queue, command))

    def close(self) -> None:
        self._client.close()


class Asyncio:
    """The asyncio client, in a loop of its own."""

    def __init__(self, guarded: Guarded, api_key: str, *, direct: bool) -> None:
        self._runner = asyncio.Runner()
        self._client = self._runner.run(self._open(guarded, api_key, direct=direct))

    @staticmethod
    async def _open(guarded: Guarded, api_key: str, *, direct: bool) -> AsyncClient:
        endpoint, server_key = guarded.cluster.endpoint, guarded.server_key
        return AsyncClient(endpoint, api_key=api_key, server_key=server_key, timeout=PATIENCE_S, direct=direct)

    def ask(self, queue: str, command: Command) -> Any:
        async def asked() -> Any:
            return await self._client.request(Ask(queue, command))

        return self._runner.run(asked())

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


Shell = Callable[..., Blocking | Asyncio]
shells = pytest.mark.parametrize("shell", [Blocking, Asyncio])
doors = pytest.mark.parametrize("direct", [True, False], ids=["the worker's door", "the router's door"])


@contextmanager
def opened(shell: Shell, guarded: Guarded, api_key: str, *, direct: bool) -> Iterator[Blocking | Asyncio]:
    client = shell(guarded, api_key, direct=direct)
    try:
        yield client
    finally:
        client.close()


def test_the_matrix_has_every_request() -> None:
    shown = {type(each) for each in [*REQUESTS, *OF_ALL_QUEUES, *OF_THE_CLUSTER, *OF_KEYS]} | set(OPEN_TO_ALL_KEYS)
    assert shown == {each for each in COMMANDS if each.opcode < OF_WORKERS}


@shells
@doors
@pytest.mark.parametrize("key", ENDED)
def test_who_has_no_valid_key_is_unauthenticated(guarded: Guarded, keys: Keys, shell: Shell, direct: bool, key: str) -> None:
    with nothing_changes(guarded), opened(shell, guarded, keys.secrets[key], direct=direct) as client:
        open_to_all = [kind() for kind in OPEN_TO_ALL_KEYS if kind is not Hello]
        for each in [*OF_ALL_QUEUES, *OF_THE_CLUSTER, *OF_KEYS, *open_to_all]:
            assert refusal(lambda e=each: client.ask("", e)) is UnauthenticatedError, each
        for queue in ("orders", *HIDDEN):
            for each in REQUESTS:
                assert refusal(lambda q=queue, e=each: client.ask(q, e)) is UnauthenticatedError, (queue, each)


@shells
@doors
def test_a_key_that_is_revoked_ends_on_open_connections(guarded: Guarded, shell: Shell, direct: bool) -> None:
    name = f"open-{shell.__name__}-{direct}"
    with opened(shell, guarded, guarded.key(name, *(f"{kind}:*" for kind in KINDS)), direct=direct) as client:
        assert refusal(lambda: client.ask("orders", GetQueueStats())) is None
        guarded.revoke(name)
        eventually(
            lambda: refusal(lambda: client.ask("orders", Enqueue([seal_envelope(b"")]))) is UnauthenticatedError, "its end"
        )
        with nothing_changes(guarded):
            for each in REQUESTS:
                assert refusal(lambda e=each: client.ask("orders", e)) is UnauthenticatedError, each


@shells
@doors
@pytest.mark.parametrize("key", ["lacking", *KINDS])
def test_who_lacks_a_permission_is_denied_whether_the_queue_exists_or_not(
    guarded: Guarded, keys: Keys, shell: Shell, direct: bool, key: str
) -> None:
    with nothing_changes(guarded), opened(shell, guarded, keys.secrets[key], direct=direct) as client:
        for each in REQUESTS:
            texts = set()
            for queue in HIDDEN:
                with pytest.raises(PermissionDeniedError) as denied:
                    client.ask(queue, each)
                texts.add(str(denied.value).replace(queue, "QUEUE"))
            assert len(texts) == 1, texts
            needed = kind_of(each.opcode)
            if key in KINDS and needed not in {None, key}:
                assert refusal(lambda e=each: client.ask("orders", e)) is PermissionDeniedError, each
        of_keys = [RevokeKey("admin"), GrantKey("admin", ["consume:orders"])] if key == "admin" else []
        for each in [*OF_ALL_QUEUES, *OF_THE_CLUSTER, *(OF_KEYS if key != "admin" else [])]:
            assert refusal(lambda e=each: client.ask("", e)) is PermissionDeniedError, each
        for each in of_keys:  # of keys that it may not manage it learns nothing
            assert refusal(lambda e=each: client.ask("", e)) is not None, each
        seen = {queue.name for queue in client.ask("", ListQueues()).queues}
        assert seen == ({"orders", "orders.dlq"} if key in KINDS else set())


@shells
@doors
@pytest.mark.parametrize("key", KINDS)
def test_who_has_a_permission_is_not_refused(guarded: Guarded, keys: Keys, shell: Shell, direct: bool, key: str) -> None:
    with opened(shell, guarded, keys.secrets[key], direct=direct) as client:
        for each in REQUESTS:
            # DeleteQueue and OpenView would disturb the other requests here; PutSchedule and MoveMessages need two
            # permissions.
            if kind_of(each.opcode) in {None, key} and not isinstance(
                each, (DeleteQueue, OpenView, PutSchedule, MoveMessages)
            ):
                got = refusal(lambda e=each: client.ask("orders", e))
                assert got not in {UnauthenticatedError, PermissionDeniedError}, each
    with guarded.client() as admin:
        admin.resume("orders")


@shells
@doors
def test_a_schedule_needs_its_name_and_its_queue(guarded: Guarded, keys: Keys, shell: Shell, direct: bool) -> None:
    def put(secret: str, name: str, queue: str) -> type[BaseException] | None:
        with opened(shell, guarded, secret, direct=direct) as client:
            command = PutSchedule(queue, Enqueue([seal_envelope(b"")]), every_ms=3_600_000)
            return refusal(lambda: client.ask(name, command))

    both = guarded.key(f"both-{shell.__name__}-{direct}", "admin:mine*", "produce:orders*")
    with nothing_changes(guarded):
        assert put(both, "mine-nightly", "secret") is PermissionDeniedError
        assert put(both, "other", "orders") is PermissionDeniedError
        assert put(keys.secrets["admin"], "orders", "orders") is PermissionDeniedError
    assert put(both, "mine-nightly", "orders") is None
    with opened(shell, guarded, both, direct=direct) as client:
        assert [each.name for each in client.ask("", ListSchedules()).schedules] == ["mine-nightly"]
        client.ask("mine-nightly", DeleteSchedule())
    with opened(shell, guarded, keys.secrets["consume"], direct=direct) as client:
        assert client.ask("", ListSchedules()).schedules == []


# --- the command line -------------------------------------------------------------------------------------------------


class Shown:
    """What a command printed, and which error of the library it ended with."""

    def __init__(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        capsys.readouterr()
        self.error: type[BaseException] | None = None
        self.text = ""
        try:
            root.main(arguments, standalone_mode=False)
        except click.ClickException as error:
            self.error, self.text = type(error.__cause__), error.format_message()
        self.out = capsys.readouterr().out


@pytest.fixture
def run(guarded: Guarded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Shown]:
    """Run a command in this process, with a key, through a door."""

    def run(arguments: list[str], api_key: str, *, direct: bool) -> Shown:
        for name, value in (
            ("ENDPOINT", guarded.cluster.endpoint), ("API_KEY", api_key), ("SERVER_KEY", guarded.server_key), ("DIRECT", str(int(direct))),
        ):  # fmt: skip
            monkeypatch.setenv(f"FILA_{name}", value)
        return Shown(arguments, capsys)

    return run


@pytest.mark.parametrize(("key", "direct"), [*((key, True) for key in ENDED), ("lacking", True), ("lacking", False)])
def test_the_command_line_without_the_right(
    guarded: Guarded, keys: Keys, run: Callable[..., Shown], tmp_path: Path, direct: bool, key: str
) -> None:
    """Without a valid key nobody comes as far as a worker's door. Each command greets: of failed greetings only 200 are answered at once."""
    expected = PermissionDeniedError if key == "lacking" else UnauthenticatedError
    secret = keys.secrets[key]
    with nothing_changes(guarded):
        for words, _ in CLI:
            texts = set()
            for queue in HIDDEN if key == "lacking" else HIDDEN[:1]:
                shown = run([word.format(queue) for word in words], secret, direct=direct)
                assert (shown.error, shown.out) == (expected, ""), (words, shown.text)
                assert "\n" not in shown.text
                texts.add(shown.text.replace(queue, "QUEUE"))
            assert len(texts) == 1, texts
        for words in [*CLI_OF_THE_CLUSTER, ["backup", str(tmp_path / "target")]]:
            shown = run(words, secret, direct=direct)
            assert (shown.error, shown.out) == (expected, ""), (words, shown.text)
        listed = run(["--json", "queue", "list"], secret, direct=direct)
        assert (listed.error, listed.out.strip()) == ((None, "[]") if key == "lacking" else (expected, ""))
    assert not list(tmp_path.rglob("MANIFEST*"))


@doors
@pytest.mark.parametrize("key", KINDS)
def test_the_command_line_with_one_right(keys: Keys, run: Callable[..., Shown], direct: bool, key: str) -> None:
    for words, needed in CLI:
        if words[1] == "delete" or words[0] == "schedule":  # there is none
            continue
        shown = run([word.format("orders") for word in words], keys.secrets[key], direct=direct)
        assert (shown.error is PermissionDeniedError) is (needed not in {None, key}), (words, shown.text)
        assert shown.error is not UnauthenticatedError


# --- HTTP -------------------------------------------------------------------------------------------------------------


def status_of(guarded: Guarded, path: str, secret: str, method: str = "GET", address: str = "127.0.0.1") -> int:
    """The status of a page, for who sends this key from an address of this machine; none if it is empty."""
    place = guarded.cluster.ready_line.split("dashboard http://")[1].split(" ")[0]
    connection = HTTPConnection(place, timeout=PATIENCE_S, source_address=(address, 0))
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    try:
        connection.request(method, path, b"payload" if method == "POST" else None, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


OF_PAGES = [*((key, "GET") for key in (*ENDED, "lacking", "right")), ("wrong", "POST"), ("lacking", "POST")]


@pytest.mark.parametrize("number", range(len(OF_PAGES)), ids=[f"{key}-{method}" for key, method in OF_PAGES])
def test_pages_with_each_kind_of_key(guarded: Guarded, keys: Keys, number: int) -> None:
    """What may be seen on a page is the broker's to say: a key without a permission there gets it empty, or nothing of its queues."""
    key, method = OF_PAGES[number]
    address = f"127.0.1.{number + 1}"  # one address may try only so many wrong keys
    with nothing_changes(guarded):
        got = {path: status_of(guarded, path, keys.secrets[key], method, address) for path in (*PAGES, *PAGES_FOR_READERS)}
    if key in ENDED:
        assert set(got.values()) == {401}, got
    elif key == "right":
        assert not set(got.values()) & {401, 403, 500}, got
        assert got["/metrics"] == got["/queues"] == 200, got
    else:
        assert not set(got.values()) & {401, 500}, got
        assert {got[path] for path in PAGES_FOR_READERS} == {403}, got


def test_what_is_open_says_nothing_of_queues(guarded: Guarded) -> None:
    assert {status_of(guarded, path, "") for path in ("/healthz", "/readyz")} == {200}
