"""The end of a benchmark before its time: SIGTERM and Ctrl-C are exceptions, which may come at any line of the main
thread."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from fila_process.parent import handling


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold signals that end the benchmark until the end of the block.

    For the start of a server: what stops it knows of it before the exception comes. Other threads than the main one get no
    such exception.
    """
    held: list[int] = []
    try:
        with handling(lambda number, _frame: held.append(number)):
            yield
    finally:
        for caught in held:
            signal.raise_signal(caught)
