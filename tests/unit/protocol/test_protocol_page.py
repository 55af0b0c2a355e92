"""docs/protocol.md says what the code does."""

import re
import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import msgspec
import pytest

from fila_cluster.client.calls.redrive import IDS_MAX
from fila_proto_zmq import commands, limits
from fila_proto_zmq.codec import decode_body, encode_body
from fila_proto_zmq.commands import (
    COMMANDS,
    DELIVERY,
    MARK,
    Appoint,
    Appointed,
    CreateQueue,
    Delivered,
    Done,
    Enqueue,
    Enqueued,
    Fault,
    GetQueueStats,
    Grants,
    Hello,
    LeaseBatch,
    MessagesTransferred,
    Park,
    QueueOptions,
    Settle,
    Settled,
    Struct,
    Subscribe,
    Subscribed,
    Tokens,
    TransferMessages,
    Verb,
    Welcome,
)
from fila_proto_zmq.errors import BY_CODE
from fila_proto_zmq.frames import ERROR, REPLY, VERSION, pack_header, unpack_header
from fila_proto_zmq.ids import format_id
from fila_proto_zmq.record import EXTENDED, FIXED_BYTES, LAYOUT_VERSION, Extension, Record, pack_record
from fila_router.core.limits import DEFAULTS as ROUTER
from fila_router.core.membership import START_MS_MAX
from fila_worker.core.inspect.views import AT_REST_MS, NEEDED_MS
from fila_worker.core.metrics.describe import CONSUMERS_SHOWN_MAX
from fila_worker.core.model.token_client import REPEAT_MS
from fila_worker.core.settings import ShardSettings
from fila_worker.link import PULSE_MS
from tests.unit.protocol.vectors import ENVELOPE, ID

PUSHES = {MARK: "MARK", DELIVERY: "DELIVERY"}

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]
CLIENTS = [command for command in COMMANDS if command.opcode < 80]
WORKERS = [command for command in COMMANDS if command.opcode >= 80]


ONE_WAY = {Tokens, Grants, Park, TransferMessages, MessagesTransferred, Appoint, Appointed}
COLUMNS = {commands.IntColumn: "int column", commands.TextColumn: "text column", commands.KeysColumn: "keys column"}


def row(*start: str) -> list[str]:
    found = [cells for cells in ROWS if cells[: len(start)] == list(start)]
    assert len(found) == 1, f"the page has {len(found)} rows that start with {start}"
    return found[0]


def kind_of(annotation: Any) -> str:
    """A field's type in the words of the page."""
    if annotation in COLUMNS:
        return COLUMNS[annotation]
    if annotation == commands.Fences:
        return "Fences"
    if get_origin(annotation) in (Union, types.UnionType):
        inner = kind_of(get_args(annotation)[0])
        return inner if inner.endswith("[") else inner + "?"
    if get_origin(annotation) is tuple:
        return "["
    if get_origin(annotation) is list:
        return f"array of {kind_of(get_args(annotation)[0])}"
    if get_origin(annotation) is dict:
        return "map"
    plain = {int: "int", str: "text", bytes: "bin", bool: "bool", float: "float"}
    return plain.get(annotation, getattr(annotation, "__name__", ""))


def default_of(field: msgspec.inspect.Field) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return " = []" if field.default_factory is list else " = {}"
    if field.default is msgspec.NODEFAULT:
        return ""
    words = {"None": "nil", "False": "false", "True": "true"}
    value = repr(field.default).replace("'", '"')
    return f" = {words.get(value, value)}"


def check_fields(struct: type[Struct], text: str) -> None:
    """Every field with its type and default, in order."""
    position = 0
    for field in msgspec.structs.fields(struct):
        wanted = f"{field.encode_name}: {kind_of(field.type)}"
        found = text.find(wanted, position)
        assert found >= 0, f"{struct.__name__} lacks {wanted!r} behind {text[:position]!r}"
        position = found + len(wanted)
        rest = text[position:].split(" · ", maxsplit=1)[0]
        assert default_of(field) in rest, f"{struct.__name__}.{field.name}: no{default_of(field)!r} in {rest!r}"
        assert default_of(field) or " = " not in rest, f"{struct.__name__}.{field.name} has no default: {rest!r}"


def replies() -> set[type[Struct]]:
    nested = {
        commands.QueueOptions, commands.QueueInfo, commands.KeyStats, commands.ThrottleStats, commands.LeaseBatch,
        commands.MessageView, commands.Reason, commands.ViewedQueue, commands.WorkerStatus, commands.TokenWant, commands.Grant,
        commands.Transfer, commands.Histogram, commands.KeyMetrics, commands.HookMetrics, commands.QueueMetrics,
        commands.ThrottleMetrics, commands.StoreMetrics, commands.ShardMetrics, commands.WorkerMetrics,
        commands.RouterMetrics, commands.ConsumerView, commands.HookState, Fault,
    }  # fmt: skip
    return {command.reply for command in COMMANDS} | nested


@pytest.mark.parametrize("command", CLIENTS, ids=lambda command: command.__name__)
def test_every_command_is_there_with_its_number_fields_and_reply(command: type[commands.Command]) -> None:
    _, _, _, body, reply = row(str(command.opcode), command.__name__)
    assert reply == command.reply.__name__
    check_fields(command, body)


@pytest.mark.parametrize("command", WORKERS, ids=lambda command: command.__name__)
def test_the_workers_commands_are_there(command: type[commands.Command]) -> None:
    _, _, _, body, reply = row(str(command.opcode), command.__name__)
    assert reply == ("–" if command in ONE_WAY else command.reply.__name__)
    check_fields(command, body)


@pytest.mark.parametrize("struct", sorted(replies(), key=lambda struct: struct.__name__), ids=lambda struct: struct.__name__)
def test_every_struct_is_there_with_its_fields(struct: type[Struct]) -> None:
    check_fields(struct, row(struct.__name__)[1])


@pytest.mark.parametrize(("opcode", "name"), PUSHES.items())
def test_what_is_pushed_is_there(opcode: int, name: str) -> None:
    assert row(str(opcode), name)[4] == "–"


def test_there_are_no_commands_that_the_code_does_not_know() -> None:
    numbers = {int(cells[0]): cells[1] for cells in ROWS if len(cells) == 5 and cells[0].isdigit()}
    assert numbers == {command.opcode: command.__name__ for command in COMMANDS} | PUSHES


def test_every_error_code_is_there_with_whether_it_may_be_retried() -> None:
    table = {cells[0]: cells[1] for cells in ROWS if len(cells) == 3 and cells[1] in {"yes", "no"}}
    assert table == {code: "yes" if kind.retryable else "no" for code, kind in BY_CODE.items()}


def test_every_limit_is_there_with_its_value() -> None:
    table = {cells[0]: cells[1] for cells in ROWS if len(cells) == 3 and re.fullmatch(r"[A-Z_]{5,}", cells[0])}
    constants = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert {name: table.get(name) for name in constants} == {name: f"{value:,}" for name, value in constants.items()}


def test_every_verb_is_there_with_its_number() -> None:
    assert {row(str(verb.value), verb.name)[1] for verb in Verb} == {verb.name for verb in Verb}


def test_the_record_is_there() -> None:
    assert f"{FIXED_BYTES} bytes" in PAGE
    assert f"flags & 0x{EXTENDED:04x}" in PAGE
    assert f"is the record's layout, {LAYOUT_VERSION}" in PAGE
    assert [name for name in Extension.__struct_fields__ if f"`{name}`" not in PAGE] == []


def test_numbers_in_prose_are_those_of_the_code() -> None:
    flowing = " ".join(PAGE.split())
    settings = ShardSettings()
    assert f"The wire protocol, version {VERSION}" in PAGE
    assert f"replies: `{REPLY}` REPLY; errors: `{REPLY | ERROR}` REPLY + `{ERROR}` ERROR" in PAGE
    assert f"the last {settings.limits.finished_leases_max:,} finished leases" in flowing
    assert f"at most {settings.limits.redrive_messages_max:,} messages at a time" in flowing
    assert f"at most {limits.DELIVERY_MESSAGES_MAX} messages" in flowing
    assert f"at most {limits.BROWSE_MESSAGES_MAX:,} messages" in flowing
    assert f"within the dedup window ({settings.dedup_window_ms // 60_000} minutes" in flowing
    assert f"`cost_milli` (int, absent: {limits.COST_MILLI_DEFAULT})" in flowing
    defaults = f"{settings.lua_timeout_ms} ms and {settings.lua_memory_limit_bytes // 2**20} MiB"
    assert f"(the broker's, {defaults})" in flowing
    assert f"or for {START_MS_MAX // 1000} s." in flowing
    assert (PULSE_MS, REPEAT_MS) == (250, 500)  # "four times a second", "for half a second"
    assert f"`consumer_timeout_ms` ({settings.consumer_timeout_ms // 1000} s)" in flowing
    assert f"(the broker's, {settings.visibility_timeout_ms // 1000} s)" in flowing
    assert f"{settings.max_payload_bytes:,} bytes by default" in flowing
    assert f"the last {limits.ERROR_TEXT_BYTES_MAX:,} bytes" in flowing
    assert f"beyond {ROUTER.calls_max:,} open requests, or {ROUTER.in_flight_bytes_max // 2**20} MiB of them" in flowing
    assert f"A shard has at most {settings.limits.views_max}:" in flowing
    assert (NEEDED_MS, AT_REST_MS) == (60_000, 5_000)  # "after a minute without use", "after 5 s"
    assert settings.limits.view_examined_messages_max == settings.limits.view_keys_max
    assert f"up to {CONSUMERS_SHOWN_MAX} of those who read it" in flowing
    assert f"With `ids`, at most {settings.limits.redrive_messages_max:,}" in flowing
    assert settings.limits.redrive_messages_max == IDS_MAX
    assert f"looks at no more than {settings.limits.view_examined_messages_max:,} messages and keys" in flowing
    assert f"Split batches at {limits.FRAME_BYTES_MAX // 2**20} MiB" in flowing


# --- the example ------------------------------------------------------------------------------------------------------

SESSION = bytes(range(32))
RECORD = pack_record(Record(0, 0, *ID, Extension(), ENVELOPE))
LEASE = 4294967297
EXPECTED: list[tuple[str, Struct]] = [
    ("→", Hello([1], "doc/1", b"")),
    ("←", Welcome(1, "0.1.0", 4, 15_000, 16_777_216, SESSION)),
    ("→", CreateQueue(QueueOptions(None, 5))),
    ("←", Done()),
    ("→", Enqueue([ENVELOPE], "acme")),
    ("←", Enqueued(*ID, 1)),
    ("→", Subscribe(1, 100, [], 0)),
    ("←", Subscribed(LEASE - 1)),
    ("←", Delivered(1, [LeaseBatch(LEASE, 1_730_000_000_200, 1_730_000_030_200, "acme", 1, [RECORD])], LEASE - 1)),
    ("→", Settle(Verb.ACK, [(LEASE, [0])])),
    ("←", Settled()),
    ("→", GetQueueStats()),
    ("←", Fault("QUEUE_NOT_FOUND", "no queue 'job'")),
]
FRAME = re.compile(r"^(→|←) (\w+).*\n  header ([0-9a-f ]+)\n  key    ([0-9a-f]+|-)\n  body   ((?:[0-9a-f]+\n? *)+)", re.M)


def shown() -> list[tuple[str, str, bytes, bytes, bytes]]:
    frames = FRAME.findall(PAGE)
    return [(arrow, name, *(bytes.fromhex("" if part == "-" else part) for part in parts)) for arrow, name, *parts in frames]


def test_the_example_is_what_the_code_sends() -> None:
    assert len(shown()) == len(EXPECTED)
    for (arrow, name, raw_header, _, body), (direction, struct) in zip(shown(), EXPECTED, strict=True):
        header = unpack_header(raw_header)
        push = header.opcode == DELIVERY
        assert arrow == direction
        assert name == ("DELIVERY" if push else type(struct).__name__)
        assert (body, decode_body(type(struct), body)) == (encode_body(struct), struct)
        greeted = arrow == "→" and name != "Hello"
        tag = int.from_bytes(SESSION[:4], "big") if greeted else 0
        assert raw_header == pack_header(header.opcode, header.request, header.flags, tag)
        assert header.flags == (0 if arrow == "→" or push else REPLY | ERROR if name == "Fault" else REPLY)


def test_the_examples_answers_belong_to_its_questions() -> None:
    asked: dict[int, tuple[int, bytes]] = {}
    for arrow, _, raw_header, key, _ in shown():
        header = unpack_header(raw_header)
        if arrow == "→":
            asked[header.request] = (header.opcode, key)
        elif header.request:
            assert asked.pop(header.request) == (header.opcode, key)
    assert asked == {}
    assert format_id(*ID) in PAGE
