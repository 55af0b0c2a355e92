"""The queues that commands name in their bodies: each is declared by its type, and each is checked at both doors."""

from collections.abc import Iterator
from random import Random

import pytest
from msgspec import inspect
from msgspec.structs import replace

from fila_admission.keys import ALGORITHM, Key, digest_of
from fila_admission.named_queues import NAMED, fields_of
from fila_admission.requests import OF_WORKERS
from fila_proto_zmq.codec import encode_body
from fila_proto_zmq.commands import (
    BY_OPCODE,
    ApiKey,
    Command,
    CreateQueue,
    Enqueue,
    Hello,
    OpenView,
    PutKeys,
    PutSchedule,
    PutTemplate,
    QueueOptions,
    UpdateQueue,
)
from fila_proto_zmq.commands.structs import QueueName
from fila_proto_zmq.errors import FilaError, PermissionDeniedError
from fila_proto_zmq.record import seal_envelope
from fila_router.core.keys.access import Access
from fila_router.core.limits import RouterLimits
from fila_worker.direct.clients import DirectClients
from tests.unit.router.desk import Desk
from tests.unit.worker.direct.porch import DOOR, QUEUE, SECRET, Porch

OTHER_TEXTS = {
    "after", "allow", "api_key", "backup", "batch", "by", "callback.batch", "callback.dedup_id", "callback.fairness_key",
    "callback.throttle_keys", "catch_up", "client", "cron", "dedup_id", "enqueue.batch", "enqueue.dedup_id",
    "enqueue.fairness_key", "enqueue.throttle_keys", "error", "fairness_key", "fairness_keys", "from_key", "given", "key", "name",
    "options.delivery", "options.on_enqueue", "options.on_failure", "pattern", "prefix", "reservation", "start", "state",
    "states", "throttle_keys", "timezone", "to_key", "value", "view", "within", "worker",
}  # fmt: skip
"""Fields of text that name no queue, or what is checked otherwise.

A pattern is checked in place of a routing key, and the router itself says ``within`` which names a list may be. A batch has a random token,
which only its maker can give away.
"""
ALLOW = [f"{kind}:{QUEUE}" for kind in ("admin", "consume", "produce")]
SECRET_QUEUE = "secret"
COMMANDS: list[Command] = [
    CreateQueue(QueueOptions(dead_letter=SECRET_QUEUE)),
    UpdateQueue(QueueOptions(dead_letter=SECRET_QUEUE), ["dead_letter"]),
    PutTemplate(QUEUE, QueueOptions(dead_letter=SECRET_QUEUE)),
    PutSchedule(SECRET_QUEUE, Enqueue([seal_envelope(b"")]), every_ms=3_600_000),
    OpenView("v", [QUEUE, SECRET_QUEUE], 10, 60_000),
]


def texts(kind: inspect.Type, path: str = "") -> Iterator[str]:
    """The fields of text of a type that are not declared to name queues."""
    if isinstance(kind, inspect.Metadata):
        if "queue" not in (kind.extra or {}):
            yield from texts(kind.type, path)
    elif isinstance(kind, inspect.StrType):
        yield path
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            yield from texts(field.type, f"{path}.{field.name}".lstrip("."))
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from texts(each, path)
    elif isinstance(kind, inspect.TupleType):
        for each in kind.item_types:
            yield from texts(each, path)
    elif isinstance(kind, inspect.CollectionType):
        yield from texts(kind.item_type, path)
    elif isinstance(kind, inspect.DictType):
        yield from texts(kind.key_type, path)
        yield from texts(kind.value_type, path)


def test_each_text_in_a_request_is_a_queue_or_known_to_be_none() -> None:
    found = {
        f"{command.__name__}.{path}"
        for opcode, command in BY_OPCODE.items()
        if opcode < OF_WORKERS
        for path in texts(inspect.type_info(command))
        if path not in OTHER_TEXTS
    }
    assert not found, "declare each as QueueName or ProducedQueue if it names a queue, else add it to OTHER_TEXTS"


def test_each_command_that_names_queues_is_tried_below() -> None:
    assert {command.opcode for command in COMMANDS} == set(NAMED)
    assert all(len(fields) == 1 for fields in NAMED.values())


def test_a_queue_is_not_declared_where_it_would_be_overlooked() -> None:
    for kind in (tuple[QueueName, int], dict[QueueName, int], QueueName | int):
        with pytest.raises(TypeError):
            list(fields_of(inspect.type_info(kind)))


def record(name: str, *allow: str) -> ApiKey:
    return ApiKey(name, ALGORITHM, digest_of(f"fila_{name}"), sorted(allow), 1)


def router_refuses(command: Command) -> FilaError | None:
    access = Access([record("mine", *ALLOW)], [], Random(1).randbytes, RouterLimits())
    desk = Desk(access=access)
    desk.register()
    desk.router.outgoing.take()
    desk.ask(Hello([1], api_key="fila_mine"), b"")
    desk.answers()
    desk.ask(command, QUEUE.encode())
    return next((answer.content for answer in desk.answers() if isinstance(answer.content, FilaError)), None)


def door_refuses(command: Command) -> FilaError | None:
    porch = Porch()
    porch.create()
    porch.clients = DirectClients(porch.host, DOOR, 15_000, 1 << 24, 4, auth=True)
    porch.clients.trust(porch.now_ms)
    porch.clients.put_keys(PutKeys([record("mine", *ALLOW)], 1))
    connection = porch.connect(None)
    porch.say(connection, Hello([1], session=SECRET, api_key="fila_mine"))
    porch.got(connection)
    answer = porch.ask(connection, command)
    return answer if isinstance(answer, FilaError) else None


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_queue_in_the_body_needs_its_permission_at_both_doors(command: Command) -> None:
    for refuses in (router_refuses, door_refuses):
        if isinstance(command, PutTemplate) and refuses is door_refuses:
            continue  # the router's alone
        error = refuses(command)
        assert isinstance(error, PermissionDeniedError), (refuses, command)
        assert f":{SECRET_QUEUE}" in error.message


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_with_the_permission_it_is_let_in(command: Command) -> None:
    kind = NAMED[command.opcode][0].kind or ("consume" if isinstance(command, OpenView) else "admin")
    key = Key(record("both", *ALLOW, f"{kind}:{SECRET_QUEUE}"))
    key.check(command.opcode, QUEUE, encode_body(command), 0)
    for wrong in {"admin", "consume", "produce"} - {kind}:
        with pytest.raises(PermissionDeniedError, match=f"does not have {kind}:{SECRET_QUEUE}"):
            Key(record("wrong", *ALLOW, f"{wrong}:{SECRET_QUEUE}")).check(command.opcode, QUEUE, encode_body(command), 0)


def test_dlq_and_discard_are_no_queues() -> None:
    key = Key(record("mine", *ALLOW))
    for target in ("dlq", "discard", None):
        command = CreateQueue(replace(QueueOptions(), dead_letter=target))
        key.check(command.opcode, QUEUE, encode_body(command), 0)
