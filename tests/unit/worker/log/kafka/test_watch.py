"""Settings of the topic that are changed while hosts run are found within a minute."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaException

from fila_worker.log.kafka.settings import KafkaSettings
from fila_worker.log.kafka.topic import LOOK_MS, TopicWatch, _configs

SETTINGS = KafkaSettings(bootstrap_servers="kafka:9092", topic="log", partitions=2, answer_ms_max=500)


class Asker:
    """A watch whose client stands in for the library's."""

    def __init__(self) -> None:
        self.questions: list[Future[Any]] = []
        self.now_ms = 1_000_000
        self.watch = TopicWatch(SETTINGS, self, lambda: self.now_ms)

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        assert request_timeout == 0.5
        self.questions.append(Future())
        return {resources[0]: self.questions[-1]}

    def look_after(self, pause_ms: int) -> int:
        """Look after a pause; return how many questions were asked until now."""
        self.now_ms += pause_ms
        self.watch.look()
        return len(self.questions)

    def answer(self, **found: str) -> None:
        values = {name: wanted.value for name, wanted in _configs(SETTINGS).items()}
        values |= {name.replace("_", "."): value for name, value in found.items()}
        self.questions[-1].set_result({name: SimpleNamespace(value=value) for name, value in values.items()})


def test_it_asks_once_a_minute_and_first_a_minute_after_the_start() -> None:
    asker = Asker()
    assert (asker.look_after(LOOK_MS - 1), asker.look_after(1), asker.look_after(LOOK_MS - 1)) == (0, 1, 1)
    asker.answer()
    assert asker.watch.problem == ""
    assert asker.look_after(1) == 2


def test_an_unsafe_setting_is_named_with_the_command_that_corrects_it_until_it_is_corrected() -> None:
    asker = Asker()
    asker.look_after(LOOK_MS)
    asker.answer(min_insync_replicas="1", retention_ms="604800000", unclean_leader_election_enable="true")
    assert asker.watch.problem == (
        "the topic log has unsafe settings: retention.ms is 604800000, wanted -1; unclean.leader.election.enable is true, wanted false;"
        " min.insync.replicas is 1, wanted 2 or more. Run: kafka-configs.sh --bootstrap-server kafka:9092 --alter --entity-type topics"
        " --entity-name log --add-config retention.ms=-1,unclean.leader.election.enable=false,min.insync.replicas=2"
    )
    asker.look_after(LOOK_MS)
    asker.questions[-1].set_exception(KafkaException())
    assert asker.watch.problem, "without an answer the last one holds"
    asker.look_after(LOOK_MS)
    asker.answer()
    assert asker.watch.problem == ""
