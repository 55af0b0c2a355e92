"""Throttle keys that deliver nothing until a time, because the service behind them said so: known to every worker.

Whoever hears of a park tells it on, and the latest time wins, so it does not matter who hears what in which order.
"""

from collections.abc import Mapping
from typing import Final

PARKS_MAX: Final = 100_000
"""Beyond, those that end first are forgotten."""


class Parks:
    """Parked throttle keys with the times until when, Unix ms."""

    def __init__(self) -> None:
        self._until_ms: dict[str, int] = {}

    def merge(self, parks: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """Take in what somebody knows; returns what of it is news."""
        known = self._until_ms
        news = {key: until_ms for key, until_ms in parks.items() if until_ms > max(now_ms, known.get(key, 0))}
        known |= news
        if len(known) > PARKS_MAX:
            self._until_ms = dict(sorted(known.items(), key=lambda park: park[1])[-PARKS_MAX:])
        return news

    def unknown_to(self, parks: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """What somebody who knows ``parks`` should be told."""
        self._until_ms = {key: until_ms for key, until_ms in self._until_ms.items() if until_ms > now_ms}
        return {key: until_ms for key, until_ms in self._until_ms.items() if until_ms > parks.get(key, 0)}
