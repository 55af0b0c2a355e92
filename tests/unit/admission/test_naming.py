"""Each queue that a request names is checked, whichever field names it."""

from collections.abc import Iterator

import pytest
from msgspec import inspect

from fila_admission.keys import Key
from fila_admission.naming import NAMING, named_queues, namings
from fila_admission.permissions import Need, need_of
from fila_proto_zmq.codec import encode_body
from fila_proto_zmq.commands import COMMANDS, ApiKey, CreateQueue, OpenView, QueueOptions
from fila_proto_zmq.errors import InvalidArgumentError, PermissionDeniedError
from fila_proto_zmq.limits import VIEW_QUEUES_MAX

NAMES_NO_QUEUE = {
    "after", "allow", "by", "catch_up", "client", "cron", "dedup_id", "delivery", "error", "fairness_key", "fairness_keys", "from_key", "name",
    "on_enqueue", "on_failure", "given", "pattern", "prefix", "reservation", "start", "state", "states", "throttle_keys", "timezone", "to_key",
    "view", "within",
    "batch",  # it has the callback's queue, and a token that only who opened the batch was given
}  # fmt: skip
"""Fields with texts that are no queue's name. ``pattern`` is the routing key of its command, see ``requests.py``."""


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
    if need_of(command.opcode) is not Need.GOVERN_ALL:
        assert set(texts(inspect.type_info(command))) <= NAMES_NO_QUEUE


def test_the_fields_that_name_queues() -> None:
    found = {(kind.__name__, *naming.path, naming.needs) for kind, fields in NAMING.values() for naming in fields}
    assert found == {
        ("CreateQueue", "options", "dead_letter", "admin"),
        ("UpdateQueue", "options", "dead_letter", "admin"),
        ("PutTemplate", "options", "dead_letter", "admin"),
        ("PutSchedule", "queue", "produce"),
        ("OpenView", "queues", "consume"),
    }
    assert all(namings(kind) for kind, _ in NAMING.values())


def test_a_view_of_a_queue_without_a_right_to_it_is_refused() -> None:
    key = Key(ApiKey("reader", "sha256", b"", ["consume:mine"], 0))
    key.check(OpenView.opcode, "mine", encode_body(OpenView("v", ["mine"], 1, 60_000)), 0)
    with pytest.raises(PermissionDeniedError, match="consume:secret, for a view beside 'mine'"):
        key.check(OpenView.opcode, "mine", memoryview(encode_body(OpenView("v", ["mine", "secret"], 1, 60_000))), 0)


def test_words_that_stand_for_no_queue_are_none() -> None:
    for word in ("dlq", "discard", None):
        assert list(named_queues(CreateQueue.opcode, encode_body(CreateQueue(QueueOptions(dead_letter=word))))) == []


def test_the_queues_of_a_request_are_bounded() -> None:
    body = encode_body(OpenView("v", ["q"] * (VIEW_QUEUES_MAX + 1), 1, 60_000))
    with pytest.raises(InvalidArgumentError, match="10001 queues in one request"):
        list(named_queues(OpenView.opcode, body))
