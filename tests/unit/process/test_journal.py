"""How events are written: one line each, whatever is in them, and never at the cost of the writer."""

import fcntl
import json
import os
import pty
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from fila_process.journal import Journal
from fila_proto_zmq.events import (
    ClientConnected,
    ConfigSet,
    ProcessStopping,
    QueueCreated,
    QueuePaused,
    StorageFailed,
    WorkerJoined,
    WorkerLost,
)
from fila_proto_zmq.events import LogSettings as Settings

HOSTILE = [
    "a\nb",
    "a\r\nb",
    '{"event": "x"}',
    "\x1b[2J\x07",
    "\u2028\u2029\x85",
    "\ud800",
    "\0",
    "%s {} \\n",
    "本" * 1000,
    "",
    "'\"",
]


class Pipe:
    """What reads a journal, if it does."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def text(self) -> str:
        """All that is there now."""
        read = b""
        with suppress(BlockingIOError):
            while piece := os.read(self.reader, 1 << 16):
                read += piece
        return read.decode()

    def events(self) -> list[dict]:
        return [json.loads(line) for line in self.text().split("\n")[:-1]]

    def close(self) -> None:
        for fd in (self.reader, self.writer):
            with suppress(OSError):
                os.close(fd)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def test_an_event_is_a_line_of_json_that_begins_with_what_all_have(pipe: Pipe):
    Journal("worker-0", Settings("json"), pipe.writer).tell([WorkerJoined("worker-1", 17, "9.9", [1, 3])])
    (event,) = pipe.events()
    assert list(event)[:5] == ["timestamp", "level", "event", "process", "pid"]
    when = datetime.fromisoformat(event.pop("timestamp"))
    assert when.tzinfo == UTC
    assert abs(datetime.now(UTC) - when) < timedelta(seconds=30)
    assert event == {
        "level": "info", "event": "worker.joined", "process": "worker-0", "pid": os.getpid(),
        "worker": "worker-1", "worker_pid": 17, "version": "9.9", "shards": [1, 3],
    }  # fmt: skip


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_breaks_a_line(name: str, form: str, pipe: Pipe):
    journal = Journal("worker-0", Settings(form), pipe.writer)
    journal.tell([QueuePaused(name, 0, name), ConfigSet(name, 7)])
    text = pipe.text()
    assert len(text.splitlines()) == text.count("\n") == 2
    assert not [each for each in text.replace("\n", "") if not each.isprintable()]


@pytest.mark.parametrize("name", HOSTILE)
def test_json_keeps_names_as_they_are(name: str, pipe: Pipe):
    Journal("worker-0", Settings("json"), pipe.writer).tell([ConfigSet(name, 7)])
    (event,) = pipe.events()
    assert event["key"] == name if len(name) < 300 else name.startswith(event["key"][:-1])


def test_the_console_shows_what_there_is(pipe: Pipe):
    journal = Journal("router", Settings("console"), pipe.writer)
    journal.tell([QueuePaused("orders", 2, None), StorageFailed(2, "1-2-3", "no space left on device")])
    paused, failed = pipe.text().splitlines()
    assert paused.split(" ", 1)[1] == f"[info     ] queue.paused       process=router pid={os.getpid()} queue=orders shard=2"
    assert failed.endswith("reason='no space left on device'")


@pytest.mark.parametrize(
    ("level", "told"),
    [
        ("debug", ["client.connected", "queue.created", "worker.lost", "storage.failed"]),
        ("info", ["queue.created", "worker.lost", "storage.failed"]),
        ("warning", ["worker.lost", "storage.failed"]),
        ("error", ["storage.failed"]),
    ],
)
def test_levels_leave_out_what_is_below(level: str, told: list[str], pipe: Pipe):
    events = [
        ClientConnected("00"),
        QueueCreated("q", 0),
        WorkerLost("w", 1, [0], "silent"),
        StorageFailed(0, "1-0-1", "full"),
    ]
    Journal("router", Settings("json", level), pipe.writer).tell(events)
    assert [event["event"] for event in pipe.events()] == told


def test_auto_is_json_in_a_pipe(pipe: Pipe):
    Journal("router", Settings(), pipe.writer).tell([ProcessStopping()])
    assert [event["event"] for event in pipe.events()] == ["process.stopping"]


def test_auto_is_for_people_on_a_terminal():
    reader, terminal = pty.openpty()
    try:
        Journal("router", Settings(), terminal).tell([ProcessStopping()])
        line = os.read(reader, 4096).decode()
    finally:
        os.close(reader)
        os.close(terminal)
    assert "process.stopping" in line
    assert not line.startswith("{")


def test_a_reader_that_does_not_read_loses_lines_and_gets_their_number(pipe: Pipe):
    journal = Journal("router", Settings("json"), pipe.writer)
    written = fcntl.fcntl(pipe.writer, fcntl.F_SETPIPE_SZ, 1 << 16) // 100  # more lines than fit
    journal.tell(QueueCreated(f"q{number}", 0) for number in range(written))  # and it comes back
    before = pipe.events()
    journal.tell([QueueCreated("last", 0)])
    lost, last = pipe.events()
    assert (lost["event"], last["queue"]) == ("log.lines_lost", "last")
    assert lost["lines"] == written - len(before) > 0
    assert [event["queue"] for event in before] == [f"q{number}" for number in range(len(before))]


def test_a_reader_that_is_gone_is_no_reason_to_stop(pipe: Pipe):
    journal = Journal("router", Settings("json"), pipe.writer)
    os.close(pipe.reader)
    journal.tell([ProcessStopping()])
    journal.tell([ProcessStopping()])
