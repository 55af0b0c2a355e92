"""Questions for where a partition begins and ends.

The consumer could answer them too, but it holds up its reads until a broker has answered.
"""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import NamedTuple

from fila_worker.log.kafka.library import admin, kafka


class Answer(NamedTuple):
    """Where a partition begins and ends."""

    question: int
    asked_ms: int
    begin: int
    end: int


class Questions:
    """One question at a time, for both ends. The answers come in a thread of the client."""

    def __init__(
        self,
        client: admin.AdminClient,
        partition: kafka.TopicPartition,
        timeout_s: float,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._client, self._partition = client, partition
        self._timeout_s, self._now_ms = timeout_s, now_ms
        self._wake = wake
        self._lock = Lock()
        self._closed = False
        self.asked = 0
        """The number of the last question."""
        self._asked_ms = 0
        self._open: set[str] = set()
        """The ends that the question under way has no answer for yet."""
        self._found: dict[str, int] = {}
        self.answer: Answer | None = None
        """The last one."""

    def ask(self) -> None:
        """Ask, if no question is under way."""
        with self._lock:
            if self._open or self._closed:
                return
            self.asked += 1
            self._asked_ms = self._now_ms()
            self._open, self._found = {"begin", "end"}, {}
        earliest = admin.OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        latest = admin.OffsetSpec.latest()  # type: ignore[no-untyped-call]
        for name, place in (("begin", earliest), ("end", latest)):
            (future,) = self._client.list_offsets({self._partition: place}, request_timeout=self._timeout_s).values()
            future.add_done_callback(lambda done, name=name: self._done(name, done))  # type: ignore[misc]

    def _done(self, name: str, future: "Future[admin.ListOffsetsResultInfo]") -> None:
        with self._lock:
            self._open.discard(name)
            # While a partition changes its leader, an answer may be no error and have no offset.
            if future.exception() is None and (offset := future.result().offset) >= 0:
                self._found[name] = offset
            if self._open:
                return
            if len(self._found) == 2:
                self.answer = Answer(self.asked, self._asked_ms, **self._found)
            if not self._closed:
                self._wake()

    def close(self) -> None:
        """Wake nobody any more."""
        with self._lock:
            self._closed = True
