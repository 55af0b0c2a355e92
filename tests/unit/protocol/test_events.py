"""The catalogue of events: each is complete, and the code logs it."""

import re
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from fila_proto_zmq.errors import StorageError
from fila_proto_zmq.events import CATALOGUE, FRAMES_MAX, TEXT_MAX, Event, Level, ProcessFailed, QueueCreated, printable

ROOT = Path(__file__).parents[3]
SOURCES = {
    file: file.read_text()
    for folder in ("proto_zmq/fila_admission", "proto_zmq/fila_process", "router", "worker", "fila_cluster")
    for file in sorted((ROOT / folder).rglob("*.py"))
}


def test_what_is_wrong_comes_with_what_to_do():
    assert [
        name for name, kind in CATALOGUE.items() if kind.level in {"warning", "error", "critical"} and not kind.advice
    ] == []


def test_every_event_says_what_it_means():
    assert [name for name, kind in CATALOGUE.items() if kind.__doc__ in {None, Event.__doc__}] == []


@pytest.mark.parametrize("kind", CATALOGUE.values(), ids=CATALOGUE)
def test_every_event_is_emitted_somewhere(kind: type[Event]):
    told = re.compile(rf"\b{kind.__name__}\b(?!,)(?! import)")
    users = [file for file, text in SOURCES.items() if kind.__name__ in text and told.search(_body(text))]
    assert users, f"{kind.__name__} is in the catalogue, and nobody tells it"


@cache
def _body(text: str) -> str:
    """A module without its imports."""
    return re.sub(r"^from [\w.]+ import (\([^)]*\)|.*)$", "", text, flags=re.MULTILINE)


def test_names_and_levels_are_of_one_style():
    assert len(CATALOGUE) == len(Event.__subclasses__())
    for name, kind in CATALOGUE.items():
        assert re.fullmatch(r"[a-z_]+\.[a-z_]+", name)
        assert kind.level in get_args(Level)
        assert not {"timestamp", "level", "event", "process", "pid"} & set(kind.__struct_fields__)


def test_nothing_in_the_project_logs_by_another_way():
    """Plain lines on standard error say why something does not start; everything else is an event."""
    shells = {file: text for file, text in SOURCES.items() if "/cli/" not in str(file) and "/spark/" not in str(file)}
    printing = {file.name for file, text in shells.items() if "file=sys.stderr" in text}
    assert printing == {"__main__.py", "process.py"}


# --- values -----------------------------------------------------------------------------------------------------------


def test_long_names_are_cut():
    assert QueueCreated("q" * TEXT_MAX, 0).fields() == {"queue": "q" * TEXT_MAX, "shard": 0, "template": None}
    assert QueueCreated("q" * (TEXT_MAX + 1), 0).fields()["queue"] == "q" * TEXT_MAX + "…"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders/eu-1", "orders/eu-1"),
        ("Bücher 本", "Bücher 本"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[2J\x9b1m\x00", r"\x1b[2J\x9b1m\x00"),
        ("\u2028\u202e\ud800", r"\u2028\u202e\ud800"),
    ],
)
def test_texts_for_people_neither_break_lines_nor_steer_terminals(text: str, shown: str):
    assert printable(text) == shown


def raised(error: Exception, depth: int = 0) -> Exception:
    """An error with a traceback that is ``depth`` calls deep."""

    def fall(left: int) -> None:
        if left:
            fall(left - 1)
        raise error

    with pytest.raises(type(error)) as caught:
        fall(depth)
    return caught.value


def test_a_failure_says_where_it_came_from():
    failed = ProcessFailed.of(raised(StorageError("disk full"), 3))
    assert (failed.error, failed.reason) == ("STORAGE", "disk full")
    assert re.fullmatch(r".*test_events\.py:\d+ fall", failed.trace[0])
    assert failed.trace[-1].endswith(" raised")


def test_a_failure_s_text_is_logged_only_if_it_can_quote_no_message():
    assert ProcessFailed.of(raised(KeyError("canary"))).reason == ""
    assert ProcessFailed.of(raised(ValueError("canary"))).fields()["error"] == "ValueError"
    assert ProcessFailed.of(raised(AssertionError("two leases"))).reason == "two leases"


def test_a_failure_s_trace_has_an_end():
    assert len(ProcessFailed.of(raised(KeyError("x"), 100)).trace) == FRAMES_MAX
