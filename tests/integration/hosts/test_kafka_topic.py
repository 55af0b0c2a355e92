"""The topic of a log is made as it must be, and one that is not so is refused with all that is wrong."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from fila_worker.log.kafka.settings import KafkaSettings
from fila_worker.log.kafka.topic import LOOK_MS, TopicError, TopicWatch, log_of, prepare_topic
from tests.support.cluster.cluster import PATIENCE_S, eventually
from tests.support.hosts.kafka import Kafka, kafka_cluster


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka_cluster(tmp_path_factory.mktemp("kafka"), brokers=1) as kafka:
        yield kafka


def settings_for(kafka: Kafka, topic: str, **changes: object) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=kafka.bootstrap, topic=topic, **{"partitions": 2, "replicas": 1} | changes)


def test_a_missing_topic_is_made_once_by_all_who_come(kafka: Kafka) -> None:
    settings = settings_for(kafka, "new", record_bytes_max=2_000_000)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(prepare_topic, [settings] * 4))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    resource = ConfigResource(ResourceType.TOPIC, "new")
    found = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    wanted = {
        "cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "unclean.leader.election.enable": "false",
        "min.insync.replicas": "1", "message.timestamp.type": "LogAppendTime", "max.message.bytes": "2000000",
    }  # fmt: skip
    assert {name: found[name].value for name in wanted} == wanted
    assert len(admin.list_topics("new", PATIENCE_S).topics["new"].partitions) == 2


def test_a_topic_that_takes_more_than_is_wanted_will_do(kafka: Kafka) -> None:
    prepare_topic(settings_for(kafka, "large", record_bytes_max=2_000_000))
    prepare_topic(settings_for(kafka, "large", record_bytes_max=1_000_000))


def test_a_topic_that_is_made_anew_is_another_log(kafka: Kafka) -> None:
    settings = settings_for(kafka, "again")
    prepare_topic(settings)
    before = log_of(settings)
    assert before == log_of(settings)
    assert re.fullmatch("again-[0-9a-f]{32}", before)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    admin.delete_topics(["again"])["again"].result(PATIENCE_S)

    def is_another() -> bool:
        with suppress(TopicError):  # the broker may still be about to delete it
            prepare_topic(settings)
            return log_of(settings) != before
        return False

    eventually(is_another, "a new log")


def test_all_that_is_wrong_is_in_one_error(kafka: Kafka) -> None:
    wrong = {
        "cleanup.policy": "compact", "retention.ms": "1000", "retention.bytes": "5000", "unclean.leader.election.enable": "true",
        "message.timestamp.type": "CreateTime", "max.message.bytes": "1000",
    }  # fmt: skip
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("wrong", 3, 1, config=wrong)])["wrong"].result(PATIENCE_S)
    with pytest.raises(TopicError) as refused:
        prepare_topic(settings_for(kafka, "wrong", replicas=3, record_bytes_max=1_000_000))
    assert str(refused.value) == (
        "the topic wrong can't keep a log: partitions is 3, wanted 2; replication factor is 1, wanted 3 or more;"
        " cleanup.policy is compact, wanted delete; retention.ms is 1000, wanted -1; retention.bytes is 5000, wanted -1;"
        " unclean.leader.election.enable is true, wanted false; min.insync.replicas is 1, wanted 2 or more;"
        " message.timestamp.type is CreateTime, wanted LogAppendTime; max.message.bytes is 1000, wanted 1000000 or more."
        " A log with another number of shards needs a topic of its own: give it a name that is not taken."
        " To keep more copies, move each partition to 3 brokers with kafka-reassign-partitions.sh; or set replicas = 1 if that is"
        " enough."
        f" Run: kafka-configs.sh --bootstrap-server {kafka.bootstrap} --alter --entity-type topics --entity-name wrong"
        " --add-config cleanup.policy=delete,retention.ms=-1,retention.bytes=-1,unclean.leader.election.enable=false,"
        "min.insync.replicas=2,message.timestamp.type=LogAppendTime,max.message.bytes=1000000"
    )
    assert refused.value.details["partitions"] == {"found": "3", "wanted": "2"}
    assert len(refused.value.details) == 9


def test_one_broker_is_enough_only_for_who_says_so(kafka: Kafka) -> None:
    with pytest.raises(TopicError, match="start 3 brokers, or set replicas = 1 if a lost broker may be a lost log"):
        prepare_topic(settings_for(kafka, "three", replicas=3))
    prepare_topic(settings_for(kafka, "three", replicas=1))


def test_a_name_that_kafka_does_not_take_is_refused(kafka: Kafka) -> None:
    with pytest.raises(TopicError, match=r"the topic a b can't be made ready: .*nvalid"):
        prepare_topic(settings_for(kafka, "a b"))


def test_brokers_that_do_not_answer_are_named() -> None:
    settings = KafkaSettings(
        bootstrap_servers="127.0.0.1:1", topic="log", partitions=1, admin_ms_max=300, properties={"client.id": "hunter2"}
    )
    with pytest.raises(
        TopicError, match=r"the last problem was: .*127\.0\.0\.1:1.*at 127\.0\.0\.1:1 up, and do they let this host in"
    ) as refused:
        prepare_topic(settings)
    assert "hunter2" not in str(refused.value)


def test_brokers_that_refuse_the_user_are_not_asked_for_long(kafka: Kafka) -> None:
    """They have no users at all here."""
    sasl = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "hunter2",
    }
    with pytest.raises(TopicError, match=r"the last problem was: .*SASL.*do they let this host in") as refused:
        prepare_topic(settings_for(kafka, "log", properties=sasl, admin_ms_max=1000 * int(PATIENCE_S)))
    assert not any(secret in str(refused.value) for secret in ("alice", "hunter2"))


def test_a_setting_that_is_changed_later_is_found_until_it_is_corrected(kafka: Kafka) -> None:
    settings = settings_for(kafka, "changed")
    prepare_topic(settings)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    now_ms = 0
    watch = TopicWatch(settings, admin, lambda: now_ms)

    def problem() -> str:
        nonlocal now_ms
        now_ms += LOOK_MS
        watch.look()
        return watch.problem

    def put_retention(value: str) -> None:
        entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        (done,) = admin.incremental_alter_configs(
            [ConfigResource(ResourceType.TOPIC, "changed", incremental_configs=[entry])]
        ).values()
        done.result(PATIENCE_S)

    put_retention("1000000000")
    eventually(lambda: "retention.ms is 1000000000, wanted -1" in problem(), "it is found")
    put_retention("-1")
    eventually(lambda: problem() == "", "it is corrected")
