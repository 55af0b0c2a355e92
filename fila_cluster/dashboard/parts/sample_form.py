"""A message made up by hand, to try scripts on."""

from typing import Final

from nicegui import ui

from fila_cluster.dashboard.trials.plan import TrialMessage

_ID: Final = "00000000-0000-7000-8000-000000000001"


class SampleForm:
    """Headers, size, key and attempts."""

    def __init__(self) -> None:
        with ui.row().classes("w-full items-start gap-3") as self.row:
            self._headers = ui.textarea("Headers, a name=value on each line", placeholder="tenant=acme")
            self._headers.props("dense outlined rows=3 data-testid=sample-headers").classes("w-80 fila-mono")
            self._size = ui.number("Payload, bytes", value=100, min=0, precision=0).props("dense outlined").classes("w-36")
            self._key = ui.input("Fairness key", value="default").props("dense outlined").classes("w-40")
            self._attempts = ui.number("Failed attempts", value=1, min=1, precision=0).props("dense outlined").classes("w-36")

    def message(self) -> TrialMessage:
        """What was filled in. :class:`ValueError` says which line is no header."""
        return TrialMessage(
            _ID,
            read_headers(self._headers.value or ""),
            int(self._size.value or 0),
            self._key.value or "default",
            attempts=int(self._attempts.value or 1),
        )


def read_headers(text: str) -> dict[str, str]:
    """Headers from lines of ``name=value``."""
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines:
        if "=" not in line:
            raise ValueError(f"{line!r} is no header: write it as name=value")
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
