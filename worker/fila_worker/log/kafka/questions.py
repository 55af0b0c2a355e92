"""Questions for the begin and the end of a partition.

The consumer could answer them, too, but then it does not read until a broker has answered.
"""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import NamedTuple

from fila_worker.log.kafka.clients import admin, kafka


class PartitionEnds(NamedTuple):
    """Where a partition begins and ends."""

    question: int
    asked_ms: int
    begin: int
    end: int


class PartitionAnswers:
    """The answers to one question at a time, for both ends. They come in a thread of the client.

    They hold no reference to the client: if its own thread drops the last one, the library aborts the process.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """``wake``: called in that thread after an answer. It must not hold the client, either."""
        self._wake = wake
        self._lock = Lock()
        self._closed = False
        self.asked = 0
        """The number of the last question."""
        self._asked_ms = 0
        self._open: set[str] = set()
        """The ends that the question under way has no answer for yet."""
        self._found: dict[str, int] = {}
        self.last: PartitionEnds | None = None

    def begin(self, now_ms: int) -> bool:
        """Begin a question. Return False if one is under way, or after :meth:`close`."""
        with self._lock:
            if self._open or self._closed:
                return False
            self.asked += 1
            self._asked_ms = now_ms
            self._open, self._found = {"begin", "end"}, {}
        return True

    def take(self, name: str, future: "Future[admin.ListOffsetsResultInfo]") -> None:
        """Take the answer for one of the ends."""
        with self._lock:
            self._open.discard(name)
            # While a partition changes its leader, an answer may be no error and have no offset.
            if future.exception() is None and (offset := future.result().offset) >= 0:
                self._found[name] = offset
            if self._open:
                return
            if len(self._found) == 2:
                self.last = PartitionEnds(self.asked, self._asked_ms, **self._found)
            if not self._closed:
                self._wake()

    def close(self) -> bool:
        """Stop waking. Return whether they were open until now."""
        with self._lock:
            was_open, self._closed = not self._closed, True
        return was_open


class Questions:
    """Asks where a partition begins and ends."""

    def __init__(
        self,
        client: admin.AdminClient,
        partition: kafka.TopicPartition,
        timeout_s: float,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        """``wake``: as in :class:`PartitionAnswers`."""
        self._client, self._partition = client, partition
        self._timeout_s, self._now_ms = timeout_s, now_ms
        self._answers = PartitionAnswers(wake)

    @property
    def asked(self) -> int:
        """The number of the last question."""
        return self._answers.asked

    @property
    def answer(self) -> PartitionEnds | None:
        """The last one."""
        return self._answers.last

    def ask(self) -> None:
        """Ask, if no question is under way."""
        answers = self._answers
        if not answers.begin(self._now_ms()):
            return
        earliest = admin.OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        latest = admin.OffsetSpec.latest()  # type: ignore[no-untyped-call]
        for name, place in (("begin", earliest), ("end", latest)):
            (future,) = self._client.list_offsets({self._partition: place}, request_timeout=self._timeout_s).values()
            future.add_done_callback(partial(answers.take, name))

    def close(self) -> bool:
        """Stop waking. Return whether they were open until now."""
        return self._answers.close()
