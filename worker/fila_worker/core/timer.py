"""When something is due next."""

from typing import Final

AT_ONCE: Final = 0
NEVER: Final = 1 << 62
"""Due times before all others, and behind them."""


class Timer:
    """When something has to be done next."""

    __slots__ = ("due_ms",)

    def __init__(self) -> None:
        self.due_ms: int = NEVER
        """Unix ms. It may be lowered at will, by hot loops without a call."""

    def by(self, due_ms: int | None) -> None:
        """Let it be done at this time, or before. None changes nothing."""
        if due_ms is not None and due_ms < self.due_ms:
            self.due_ms = due_ms
