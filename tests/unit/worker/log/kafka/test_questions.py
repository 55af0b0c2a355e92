"""An answer counts if both ends of the partition are known."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from fila_worker.log.kafka.questions import PartitionEnds, Questions


class Client:
    """Stands in for the library's. Its futures are in the order of the questions: begin, end."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def list_offsets(self, places: dict[TopicPartition, object], request_timeout: float) -> dict[TopicPartition, Future[Any]]:
        assert request_timeout == 0.5
        self.futures.append(Future())
        return dict.fromkeys(places, self.futures[-1])

    def answer(self, *offsets: int | None) -> None:
        """None: an error."""
        for offset, future in zip(offsets, self.futures, strict=True):
            if offset is None:
                future.set_exception(KafkaException())
            else:
                future.set_result(SimpleNamespace(offset=offset))
        self.futures.clear()


class Asker:
    def __init__(self) -> None:
        self.client, self.now_ms, self.wakes = Client(), 0, 0
        self.questions = Questions(self.client, TopicPartition("log", 0), 0.5, lambda: self.now_ms, self._wake)

    def _wake(self) -> None:
        self.wakes += 1


def test_an_answer_is_as_old_as_its_question() -> None:
    asker = Asker()
    asker.now_ms = 7
    asker.questions.ask()
    asker.now_ms = 9
    asker.questions.ask()
    assert (len(asker.client.futures), asker.wakes) == (2, 0)
    asker.client.answer(3, 10)
    assert asker.questions.answer == PartitionEnds(1, 7, 3, 10)
    assert asker.wakes == 1
    asker.questions.ask()
    asker.client.answer(3, 11)
    assert asker.questions.answer == PartitionEnds(2, 9, 3, 11)


@pytest.mark.parametrize("offsets", [(None, 10), (3, None), (None, None), (-1001, 10), (3, -1001), (3, -1)])
def test_half_an_answer_is_none(offsets: tuple[int | None, int | None]) -> None:
    """Seen while the partition's leader was killed: no error, and -1001 for an offset."""
    asker = Asker()
    asker.questions.ask()
    asker.client.answer(*offsets)
    assert (asker.questions.answer, asker.wakes) == (None, 1)
    asker.questions.ask()
    asker.client.answer(3, 10)
    assert asker.questions.answer == PartitionEnds(2, 0, 3, 10)


def test_nobody_is_woken_after_the_end() -> None:
    asker = Asker()
    asker.questions.ask()
    asker.questions.close()
    asker.client.answer(3, 10)
    asker.questions.ask()
    assert (asker.wakes, asker.client.futures) == (0, [])
