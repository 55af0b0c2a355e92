"""Signals that end a benchmark wait while a server starts."""

import signal
import threading
from collections.abc import Iterator

import pytest

from benchmarks.harness.ending import undisturbed
from fila_process.parent import ENDINGS, handling


class EndedError(Exception):
    pass


def end(*_: object) -> None:
    raise EndedError


@pytest.fixture(autouse=True)
def ends_by_exception() -> Iterator[None]:
    with handling(end):
        yield


@pytest.mark.parametrize("number", ENDINGS)
def test_a_signal_waits_for_the_end_of_the_block(number: signal.Signals) -> None:
    done: list[str] = []

    def start() -> None:
        with undisturbed():
            signal.raise_signal(number)
            done.append("server started")

    with pytest.raises(EndedError):
        start()
    assert done == ["server started"]
    assert signal.getsignal(number) is end


def test_it_comes_after_an_error_of_the_block_too() -> None:
    def fail() -> None:
        with undisturbed():
            signal.raise_signal(signal.SIGTERM)
            raise OSError("no such program")

    with pytest.raises(EndedError):
        fail()


def test_without_a_signal_nothing_comes() -> None:
    with undisturbed():
        pass
    assert [signal.getsignal(number) for number in ENDINGS] == [end, end]


def test_other_threads_may_use_it() -> None:
    handlers = []

    def start() -> None:
        with undisturbed():
            handlers.extend(signal.getsignal(number) for number in ENDINGS)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert handlers == [end, end]
