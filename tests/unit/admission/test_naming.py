"""Each queue that a request names is checked, whichever field names it."""

from collections.abc import Iterator
from random import Random

import pytest
from msgspec import inspect

from fila_admission.keys import ALGORITHM, Key, digest_of
from fila_admission.permissions import NAMING, NeededPermission, named_queues, namings, need_of
from fila_proto_zmq.codec import encode_body
from fila_proto_zmq.commands import (
    COMMANDS,
    ApiKey,
    ChangesConfig,
    ChangesPartitioned,
    Command,
    CreatePartitioned,
    CreateQueue,
    DeletePartitioned,
    Enqueue,
    Hello,
    MoveMessages,
    OpenView,
    PutKeys,
    PutSchedule,
    PutTemplate,
    QueueOptions,
    UpdatePartitioned,
    UpdateQueue,
)
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, PermissionDeniedError
from fila_proto_zmq.limits import VIEW_QUEUES_MAX
from fila_proto_zmq.record import seal_envelope
from fila_router.core.keys.access import Access
from fila_router.core.limits import RouterLimits
from fila_worker.transport.direct_clients import DirectClients
from tests.unit.router.desk import Desk
from tests.unit.worker.transport.socket_peers import DOOR, QUEUE, SECRET, SocketPeers

NAMES_NO_QUEUE = {
    "after", "allow", "by", "catch_up", "client", "cron", "dedup_id", "delivery", "error", "fairness_key", "fairness_keys", "from_key", "name",
    "on_enqueue", "on_failure", "given", "pattern", "prefix", "reservation", "start", "state", "states", "throttle_keys", "timezone", "to_key",
    "spread", "view", "within",
    "queue",  # of PutSchedule it says what it needs; of commands for queues with partitions it is the routing key, like ``pattern``
    "batch",  # it has the callback's queue, and a token that only who opened the batch was given
}  # fmt: skip
"""Fields with texts that are no queue's name. ``pattern`` is the routing key of its command, see ``in_flight.py``."""


ALLOW = [f"{kind}:{QUEUE}" for kind in ("admin", "consume", "produce")]
FOREIGN: list[Command] = [
    CreateQueue(QueueOptions(dead_letter="secret")),
    UpdateQueue(QueueOptions(dead_letter="secret"), ["dead_letter"]),
    PutTemplate(QUEUE, QueueOptions(dead_letter="secret")),
    CreatePartitioned(QUEUE, QueueOptions(dead_letter="secret")),
    UpdatePartitioned(QUEUE, QueueOptions(dead_letter="secret"), ["dead_letter"]),
    PutSchedule("secret", Enqueue([seal_envelope(b"")]), every_ms=3_600_000),
    OpenView("v", [QUEUE, "secret"], 10, 60_000),
    MoveMessages("secret", 0),
]
"""Each names a queue to which ``ALLOW`` gives no right."""


def texts(found: inspect.Type, name: str = "") -> Iterator[str]:
    """The fields with texts that nothing says to name queues."""
    if isinstance(found, inspect.StrType):
        yield name
    elif isinstance(found, inspect.Metadata):
        if not (found.extra and "needs" in found.extra):
            yield from texts(found.type, name)
    elif isinstance(found, inspect.StructType):
        for field in found.fields:
            yield from texts(field.type, field.name)
    elif isinstance(found, inspect.UnionType):
        for each in found.types:
            yield from texts(each, name)
    elif isinstance(found, inspect.ListType | inspect.VarTupleType):
        yield from texts(found.item_type, name)
    elif isinstance(found, inspect.TupleType):
        for each in found.item_types:
            yield from texts(each, name)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_a_field_with_a_text_names_queues_or_is_known_not_to(command: type) -> None:
    """Who may do everything needs no check: the other requests do."""
    if need_of(command.opcode) is not NeededPermission.GOVERN_ALL:
        assert set(texts(inspect.type_info(command))) <= NAMES_NO_QUEUE


def test_the_fields_that_name_queues() -> None:
    found = {(kind.__name__, *naming.path, naming.needs) for kind, fields in NAMING.values() for naming in fields}
    assert found == {
        ("CreateQueue", "options", "dead_letter", "admin"),
        ("UpdateQueue", "options", "dead_letter", "admin"),
        ("PutTemplate", "options", "dead_letter", "admin"),
        ("CreatePartitioned", "options", "dead_letter", "admin"),
        ("UpdatePartitioned", "options", "dead_letter", "admin"),
        ("PutSchedule", "queue", "produce"),
        ("MoveMessages", "target", "produce"),
        ("OpenView", "queues", "consume"),
    }
    assert all(namings(kind) for kind, _ in NAMING.values())


def test_a_view_of_a_queue_without_a_right_to_it_is_refused() -> None:
    key = Key(ApiKey("reader", "sha256", b"", ["consume:mine"], 0))
    key.check(OpenView.opcode, "mine", encode_body(OpenView("v", ["mine"], 1, 60_000)), 0)
    with pytest.raises(PermissionDeniedError, match="consume:secret, for a view beside 'mine'"):
        key.check(OpenView.opcode, "mine", memoryview(encode_body(OpenView("v", ["mine", "secret"], 1, 60_000))), 0)


def record(*allow: str) -> ApiKey:
    return ApiKey("mine", ALGORITHM, digest_of("fila_mine"), sorted(allow), 1)


def router_refuses(command: Command) -> FilaError | None:
    access = Access([record(*ALLOW)], [], Random(1).randbytes, RouterLimits())
    desk = Desk(access=access)
    desk.register()
    desk.router.outgoing.take()
    desk.ask(Hello([1], api_key="fila_mine"), b"")
    desk.answers()
    desk.ask(command, QUEUE.encode())
    return next((answer.content for answer in desk.answers() if isinstance(answer.content, FilaError)), None)


def worker_refuses(command: Command) -> FilaError | None:
    peers = SocketPeers()
    peers.create()
    peers.clients = DirectClients(peers.host, DOOR, 15_000, 1 << 24, 4, auth=True)
    peers.clients.trust(peers.now_ms)
    peers.clients.put_keys(PutKeys([record(*ALLOW)], 1))
    connection = peers.connect(None)
    peers.say(connection, Hello([1], session=SECRET, api_key="fila_mine"))
    peers.got(connection)
    answer = peers.ask(connection, command)
    return answer if isinstance(answer, FilaError) else None


@pytest.mark.parametrize("command", FOREIGN, ids=lambda command: type(command).__name__)
def test_a_queue_in_the_body_needs_its_permission_at_both_doors(command: Command) -> None:
    doors = (
        [router_refuses] if isinstance(command, ChangesConfig) else [router_refuses, worker_refuses]
    )  # what is kept in the config is the router's
    for refuses in doors:
        error = refuses(command)
        assert isinstance(error, PermissionDeniedError), (refuses, command)
        assert ":secret, for " in error.message


@pytest.mark.parametrize("command", FOREIGN, ids=lambda command: type(command).__name__)
def test_with_the_permission_it_is_let_in(command: Command) -> None:
    needs = NAMING[command.opcode][1][0].needs
    Key(record(*ALLOW, f"{needs}:secret")).check(command.opcode, QUEUE, encode_body(command), 0)
    for wrong in {"admin", "consume", "produce"} - {needs}:
        with pytest.raises(PermissionDeniedError, match=f"does not have {needs}:secret"):
            Key(record(*ALLOW, f"{wrong}:secret")).check(command.opcode, QUEUE, encode_body(command), 0)


def test_each_command_that_names_queues_is_tried() -> None:
    assert {command.opcode for command in FOREIGN} == NAMING.keys()


@pytest.mark.parametrize("kind", [CreatePartitioned, UpdatePartitioned, DeletePartitioned])
def test_a_queue_with_partitions_is_changed_by_who_governs_it(kind: type[ChangesPartitioned]) -> None:
    rest = {CreatePartitioned: (QueueOptions(),), UpdatePartitioned: (QueueOptions(), [])}.get(kind, ())
    assert router_refuses(kind(QUEUE, *rest)) is None
    for name in "secret", QUEUE + "s":
        assert isinstance(router_refuses(kind(name, *rest)), PermissionDeniedError)


def test_words_that_stand_for_no_queue_are_none() -> None:
    for word in ("dlq", "discard", None):
        assert list(named_queues(CreateQueue.opcode, encode_body(CreateQueue(QueueOptions(dead_letter=word))))) == []


def test_the_queues_of_a_request_are_bounded() -> None:
    body = encode_body(OpenView("v", ["q"] * (VIEW_QUEUES_MAX + 1), 1, 60_000))
    with pytest.raises(InvalidArgumentError, match="10001 queues in one request"):
        list(named_queues(OpenView.opcode, body))
