"""The due time of a component's or feature's work."""

from typing import Final

AT_ONCE: Final = 0
NEVER: Final = 1 << 62
"""A due time before all others, and one after them."""


class DueTime:
    """A due time that can be lowered."""

    __slots__ = ("due_ms",)

    def __init__(self) -> None:
        self.due_ms: int = NEVER
        """Unix ms. Hot loops may lower it without a call."""

    def by(self, due_ms: int | None) -> None:
        """Lower the due time to this one, if it is earlier. None changes nothing."""
        if due_ms is not None and due_ms < self.due_ms:
            self.due_ms = due_ms
