"""Interrupts at each line of a call, as a signal handler raises them."""

import gc
import sys
from collections.abc import Callable
from linecache import getline
from types import FrameType
from typing import Any


class Interrupt(KeyboardInterrupt):
    """An interrupt that a test makes."""


def interrupted_at(step: int, act: Callable[[], object], path: str = "") -> bool:
    """Interrupt ``act`` once, before the line with this number among those that it executes; return False if it ended before.

    ``path``: count only the lines of files whose names begin so. The end of a ``with`` is traced as a line, too, and is not
    counted: a signal can't come between the last call of its body and its exit.
    """
    left = step
    lines: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        file, line = frame.f_code.co_filename, frame.f_lineno
        if not file.startswith(path):
            return None
        if event == "line":
            ends = line < lines.get(frame, 0) and getline(file, line).lstrip().startswith(("with ", "async with "))
            lines[frame] = line
            if not ends:
                left -= 1
                if left == -1:
                    raise Interrupt
        return trace

    collects, earlier = gc.isenabled(), sys.gettrace()
    gc.disable()  # an interrupt in a finalizer is swallowed
    sys.settrace(trace)
    try:
        act()
    except Interrupt:
        return True
    finally:
        sys.settrace(earlier)
        if collects:
            gc.enable()
    return False
