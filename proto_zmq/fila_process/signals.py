"""Signals that ask a program to end."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

ENDINGS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def handling(handler: "Callable[[int, FrameType | None], object] | signal.Handlers", *numbers: int) -> Iterator[None]:
    """Call ``handler`` for signals (``ENDINGS`` unless ``numbers`` are given) until the end of the block, then the handlers
    before.

    Only the main thread can do that: in any other one, nothing changes.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in numbers or ENDINGS} if is_main else {}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
