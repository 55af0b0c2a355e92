"""What libraries say through Python's logging comes as events."""

import json
import logging
import os
import warnings
from collections.abc import Iterator

import pytest

from fila_cluster.ops.observer.serving import listen_to_libraries
from fila_process.journal import Journal
from fila_proto_zmq.events import LogSettings


@pytest.fixture
def told() -> Iterator[int]:
    """The descriptor to read the log from; logging is as before afterwards."""
    reader, writer = os.pipe()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        listen_to_libraries(Journal("observer", LogSettings("json"), writer))
        yield reader
    finally:
        logging.captureWarnings(capture=False)
        root.handlers[:], _ = before
        root.setLevel(before[1])
        os.close(reader)
        os.close(writer)


def events(reader: int) -> list[dict]:
    return [json.loads(line) for line in os.read(reader, 1 << 16).decode().splitlines()]


def test_warnings_and_errors_are_logged_and_the_rest_is_not(told: int):
    library = logging.getLogger("uvicorn.error")
    library.info("started")
    library.warning("Invalid HTTP %s\nreceived.", "request")
    library.error("no more")
    warned, failed = events(told)
    assert (warned["event"], warned["level"], warned["library"]) == ("library.warned", "warning", "uvicorn.error")
    assert warned["text"] == "Invalid HTTP request\nreceived."
    assert (failed["event"], failed["level"], failed["text"], failed["trace"]) == ("library.failed", "error", "no more", [])


def test_an_exception_is_one_line_with_its_place_and_without_its_text(told: int):
    try:
        {}["canary"]
    except KeyError:
        logging.getLogger("nicegui").exception("Exception in ASGI application\n")
    (failed,) = events(told)
    assert failed["text"] == "Exception in ASGI application (KeyError)"
    assert "test_libraries.py" in failed["trace"][0]
    assert "canary" not in str(failed)


def test_warnings_of_python_come_the_same_way(told: int):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        warnings.warn("old ways", DeprecationWarning, stacklevel=1)
    (warned,) = events(told)
    assert (warned["event"], warned["library"]) == ("library.warned", "py.warnings")
    assert "old ways" in warned["text"]
