"""Clients that are refused for what they are, told to the operator: a flood of them is a line now and then, with their number."""

from collections.abc import Iterator
from typing import Final

from fila_proto_zmq.clients import client_name
from fila_proto_zmq.errors import (
    InvalidFrameError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnsupportedVersionError,
)
from fila_proto_zmq.events import ClientRefused
from fila_router.core.tally import Tally

TELL_AGAIN_MS: Final = 10_000
"""How long what was told of one kind of refusal is news enough."""

CODES: Final = tuple(
    error.code for error in (InvalidFrameError, PermissionDeniedError, UnauthenticatedError, UnsupportedVersionError)
)


class Refusals:
    """What was told of the refusals that a tally counts."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._told: dict[str, tuple[int, int]] = {}
        """How many had been told, and when, by code."""

    def news(self, now_ms: int) -> Iterator[ClientRefused]:
        """What is to be told now. Call it now and then."""
        for code in CODES:
            count = self._tally.refused.get(code, 0)
            told, told_ms = self._told.get(code, (0, now_ms - TELL_AGAIN_MS))
            if count > told and now_ms - told_ms >= TELL_AGAIN_MS:
                self._told[code] = count, now_ms
                yield ClientRefused(client_name(self._tally.refused_last[code]), code, count - told)
