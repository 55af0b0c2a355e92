"""The end of a benchmark before its time: SIGTERM and Ctrl-C are exceptions, which may come at any line of the main thread."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDINGS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold signals that end the benchmark until the end of the block.

    For the start of a server: what stops it knows of it before the exception comes. Other threads than the main one get no such exception.
    """
    held: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in ENDINGS} if is_main else {}
    for number in before:
        signal.signal(number, lambda number, _frame: held.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for caught in held:
            signal.raise_signal(caught)
