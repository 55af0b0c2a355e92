"""What a page knows: an answer is awaited, unknown for a reason, or there. What is absent is never shown as what is empty.

Tables, tiles and buttons of a page register themselves. Whoever asks the broker for the page says how it went.
"""

from typing import Final, Protocol
from weakref import WeakKeyDictionary

from nicegui import Client, ui

LOADING: Final = "Loading…"
"""The text in place of what was not answered yet."""


class Asking(Protocol):
    """A part of a page that shows, or changes, what the broker answers."""

    def unknown(self, reason: str) -> None:
        """Note that the present state is not known."""
        ...

    def known(self) -> None:
        """Note that the broker has answered."""
        ...


_parts: WeakKeyDictionary[Client, list[Asking]] = WeakKeyDictionary()


def register(part: Asking) -> None:
    """Add a part of the page that is being built."""
    _parts.setdefault(ui.context.client, []).append(part)


def unknown_here(reason: str) -> None:
    """Note for all parts of this page that the state is not known."""
    for part in _parts.get(ui.context.client, ()):
        part.unknown(reason)


def known_here() -> None:
    """Note for all parts of this page that the broker has answered."""
    for part in _parts.get(ui.context.client, ()):
        part.known()


class Verb:
    """A button that changes what the page shows. It is off while that is not known."""

    def __init__(self, button: ui.button) -> None:
        self._button = button
        button.set_enabled(False)
        register(self)

    def unknown(self, reason: str) -> None:
        """Turn the button off."""
        self._button.set_enabled(False)

    def known(self) -> None:
        """Turn the button on."""
        self._button.set_enabled(True)
