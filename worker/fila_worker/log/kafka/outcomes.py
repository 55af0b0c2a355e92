"""What has become of the appends of one appender. It is used by two threads: the worker's, and the one that collects reports."""

from collections import deque
from threading import Lock
from typing import Final

from fila_worker.log.partition import Report

PAUSE_S_MAX: Final = 1.0
"""A longer time between two looks is a pause of this process, in which no report could come: it costs no more patience than this."""


class Outcomes:
    """Reports in the order of the appends, each once, whatever the order in which the outcomes come.

    The first append that fails fails all behind it.
    """

    def __init__(self, patience_s: float, now_s: float) -> None:
        self._lock = Lock()
        self._patience_s = patience_s
        self._looked_s = now_s
        self._awake_s = 0.0
        """A clock that stands still while the process does."""
        self._appended = 0
        self._reported = 0
        self._waiting: deque[tuple[int, int, float]] = deque()
        """The appends that had no outcome when last looked at: number, bytes, and when they began."""
        self._settled: dict[int, Report] = {}
        self._failed: tuple[int, str] | None = None
        """The first append that failed, and why."""
        self.bytes = 0
        """Of all appends without an outcome, as of the last look."""

    def begin(self, size: int) -> tuple[int, bool]:
        """Return the number of the next append, and whether it may be sent."""
        with self._lock:
            self._appended += 1
            if self._failed is None:
                self._waiting.append((self._appended, size, self._awake_s))
                self.bytes += size
            return self._appended, self._failed is None

    def settle(self, number: int, offset: int | None) -> None:
        """Take it that an append is in the log."""
        with self._lock:
            self._settled[number] = Report(number, offset)
            self._drop_settled()

    def fail(self, number: int, reason: str) -> bool:
        """Let an append fail, and all behind it. Return whether that is news."""
        with self._lock:
            return self._fail(number, reason)

    def fail_all(self, reason: str) -> bool:
        """Let all appends without an outcome fail, and all later ones. Return whether that is news."""
        with self._lock:
            return self._fail(self._waiting[0][0] if self._waiting else self._appended + 1, reason)

    def _fail(self, number: int, reason: str) -> bool:
        if self._failed is not None and number >= self._failed[0]:
            return False
        self._failed = number, reason
        self._drop_settled()
        return True

    def _drop_settled(self) -> None:
        while self._waiting and (
            self._waiting[0][0] in self._settled or (self._failed is not None and self._waiting[0][0] >= self._failed[0])
        ):
            self.bytes -= self._waiting.popleft()[1]

    def look(self, now_s: float) -> bool:
        """Count the time; return whether the oldest append has waited longer than there is patience."""
        with self._lock:
            self._awake_s += min(now_s - self._looked_s, PAUSE_S_MAX)
            self._looked_s = now_s
            return bool(self._waiting) and self._awake_s - self._waiting[0][2] > self._patience_s

    def take(self) -> list[Report]:
        """Return the reports that can be given now."""
        reports = []
        with self._lock:
            while (report := self._settled.pop(self._reported + 1, None)) and not self._fails(report.append):
                reports.append(report)
                self._reported += 1
            if self._fails(self._reported + 1):
                assert self._failed is not None
                first, reason = self._failed
                behind = f"append {first} failed ({reason}), and nothing is sent behind it"
                rest = range(self._reported + 1, self._appended + 1)
                reports.extend(Report(number, None, reason if number == first else behind) for number in rest)
                self._reported = self._appended
        return reports

    def _fails(self, number: int) -> bool:
        return self._failed is not None and number >= self._failed[0]
