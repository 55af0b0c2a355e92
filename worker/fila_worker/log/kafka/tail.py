"""Reads one partition through a consumer of its own, without a group.

The consumer reads ahead in its own threads. :meth:`KafkaTail.read` takes what is there.

The library reports that an offset is not in the log, but not at which end. So the tail asks where the log begins and ends,
and looks once more before it reports a loss. If a log has gone back and has grown again, it has the offset. The library finds
that by the epochs of the partition's leaders (KIP-320): it asks a new leader for the end of the epoch of the last record
read. It asks only when the leader changes, so a second look would find nothing.
"""

from threading import Thread
from typing import Final

from fila_proto_zmq.errors import StorageError
from fila_worker.log.kafka.clients import Trouble, kafka, new_consumer
from fila_worker.log.kafka.questions import PartitionEnds, Questions
from fila_worker.log.kafka.settings import KafkaSettings
from fila_worker.log.partition import LogEntry, TrimmedError
from fila_worker.log.rule import LOST_ADVICE, LostError

WILL_NOT_PASS: Final = frozenset(
    {
        kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        kafka.KafkaError.INVALID_MSG,
        kafka.KafkaError._BAD_MSG,
        kafka.KafkaError._BAD_COMPRESSION,
    }
)
"""Everything else is tried again by the library: brokers that are gone, leaders that move, a topic that is not known yet."""
TRUNCATED: Final = kafka.KafkaError(kafka.KafkaError._LOG_TRUNCATION).str()
"""A part of the error's text if the new leader's log has less of an old epoch than was read."""
LOOKS_MAX: Final = 2
"""How often in a row the offset must be missing until the log counts as gone back."""


class KafkaTail:
    """A :class:`fila_worker.log.partition.Tail`."""

    def __init__(self, settings: KafkaSettings, number: int, offset: int, questions: Questions) -> None:
        self._settings, self._number = settings, number
        self._questions = questions
        self._next, self._epoch = offset, -1
        """Where the next record is to be, and the epoch of the leader that wrote the one before."""
        self._failure: StorageError | None = None
        self._missing = 0
        """How often in a row the next record was reported as missing."""
        self._unexplained: int | None = None
        """The number of the last question before that; None: there is nothing to explain."""
        self.trouble = Trouble(settings)
        self._consumer = new_consumer(settings, self.trouble.take)
        self._assign()

    def _assign(self) -> None:
        place = kafka.TopicPartition(self._settings.topic, self._number, self._next, leader_epoch=self._epoch)
        self._consumer.assign([place])

    def read(self, records_max: int) -> list[LogEntry]:
        """Return the next records that have arrived."""
        if self._unexplained is not None:
            self._explain(self._unexplained)
        self._raise_failure()
        entries = []
        for message in self._consumer.consume(records_max, timeout=0):
            error, data, offset = message.error(), message.value(), message.offset()
            if error is not None:
                self._judge(error)
            elif self._unexplained is None and self._failure is None and offset is not None:
                entries.append(LogEntry(offset, data or b""))
                self._next, self._epoch, self._missing = offset + 1, _epoch_of(message), 0
        if not entries:
            self._raise_failure()
        return entries

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _judge(self, error: kafka.KafkaError) -> None:
        if error.code() == kafka.KafkaError._AUTO_OFFSET_RESET:
            self._missing += LOOKS_MAX if TRUNCATED in error.str() else 1
            self._unexplained = self._questions.asked
        elif error.fatal() or error.code() in WILL_NOT_PASS:
            text = self._settings.without_secrets(error.str())
            where = f"partition {self._number} of the topic {self._settings.topic} can't be read from offset {self._next} on"
            self._failure = StorageError(f"{where}: {text}", details={"offset": self._next})
        else:
            self.trouble.take(error)

    def _explain(self, asked: int) -> None:
        answer = self._questions.answer
        if answer is None or answer.question <= asked:
            self._questions.ask()
            return
        self._failure, self._unexplained = self._explained(answer), None
        if self._failure is None:
            self._assign()

    def _explained(self, answer: PartitionEnds) -> StorageError | None:
        details = {"offset": self._next, "begin": answer.begin, "end": answer.end}
        if self._next < answer.begin:
            text = (
                f"offset {self._next} is needed, but the log begins at {answer.begin}: begin the copy again from a checkpoint"
            )
            return TrimmedError(text, details=details)
        if self._missing < LOOKS_MAX:
            return None
        back = f"to {answer.end}" if answer.end < self._next else "and has grown again"
        return LostError(
            f"the log was read up to offset {self._next}, but it has gone back {back}: {LOST_ADVICE}", details=details
        )

    @property
    def end(self) -> int | None:
        """The offset behind the last record, as of ``asked_ms``."""
        answer = self._questions.answer
        return None if answer is None else answer.end

    @property
    def asked_ms(self) -> int | None:
        """When the last question was asked, if it has its answer."""
        answer = self._questions.answer
        return None if answer is None or answer.question < self._questions.asked else answer.asked_ms

    def ask(self) -> None:
        """Ask for the end."""
        self._questions.ask()

    def close(self) -> None:
        """End soon."""
        if self._questions.close():
            # It may have to wait for its connections.
            Thread(target=self._consumer.close, name="end of a reader", daemon=True).start()


def _epoch_of(message: kafka.Message) -> int:
    epoch = message.leader_epoch()
    return -1 if epoch is None else epoch
