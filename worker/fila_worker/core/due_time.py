"""The due time of a component's or feature's work."""

from typing import Final

AT_ONCE: Final = 0
NEVER: Final = 1 << 62
"""A due time before all others, and one after them."""


class Agenda:
    """A bound for several due times: none of them is earlier. So an owner with nothing due needs one comparison."""

    __slots__ = ("due_ms",)

    def __init__(self) -> None:
        self.due_ms: int = NEVER
        """Unix ms."""


class DueTime:
    """A due time that can be lowered."""

    __slots__ = ("_agenda", "due_ms")

    def __init__(self) -> None:
        self.due_ms: int = NEVER
        """Unix ms. Only its agenda's owner sets it; others lower it with :meth:`by`."""
        self._agenda = Agenda()

    def enter(self, agenda: Agenda) -> None:
        """Count for an agenda from now on."""
        self._agenda = agenda
        agenda.due_ms = min(agenda.due_ms, self.due_ms)

    def by(self, due_ms: int | None) -> None:
        """Lower the due time to this one, if it is earlier. None changes nothing."""
        if due_ms is not None and due_ms < self.due_ms:
            self.due_ms = due_ms
            self._agenda.due_ms = min(self._agenda.due_ms, due_ms)
