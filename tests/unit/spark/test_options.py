"""What .option(…) may say."""

import pickle

import pytest

from fila_cluster.errors import InvalidArgumentError
from fila_cluster.spark.feed import OPTIONS, PartitionIntake
from fila_cluster.spark.options import BrokerAccess, one_queue_of, queue_of, refuse_unknown, seconds_of


def test_a_connection_is_read_from_options_and_travels(monkeypatch):
    monkeypatch.delenv("FILA_ENDPOINT", raising=False)
    connection = BrokerAccess.of({"Endpoint": "tcp://there:1", "timeout": "2s", "api_key": ""})
    assert connection == BrokerAccess("tcp://there:1", None, None, 2.0)
    assert pickle.loads(pickle.dumps(connection)) == connection
    assert BrokerAccess.of({}) == BrokerAccess("tcp://127.0.0.1:5555", timeout_s=5.0)


def test_the_environment_of_the_driver_counts(monkeypatch):
    monkeypatch.setenv("FILA_ENDPOINT", "tcp://elsewhere:2")
    assert BrokerAccess.of({}).endpoint == "tcp://elsewhere:2"
    assert BrokerAccess.of({"endpoint": "tcp://there:1"}).endpoint == "tcp://there:1"


def test_keys_reach_the_client():
    access = BrokerAccess.of({"api_key": "fila_x", "server_key": "k" * 40})
    assert (access.api_key, access.server_key) == ("fila_x", "k" * 40)


def test_a_queue_is_a_name_or_a_pattern():
    assert queue_of({}) is None
    assert queue_of({"queue": "orders*"}) == "orders*"
    assert one_queue_of({"queue": "orders"}) == "orders"
    with pytest.raises(InvalidArgumentError, match=r"bad queue name 'orders\*'"):
        one_queue_of({"queue": "orders*"})


@pytest.mark.parametrize(("text", "seconds"), [("1500", 1.5), ("500ms", 0.5), ("30s", 30), ("5m", 300), ("2h", 7200)])
def test_durations(text, seconds):
    assert seconds_of({"retry_for": text}, "retry_for", 1.0) == seconds


@pytest.mark.parametrize("text", ["soon", "-1s", "0", "8d", "200h", "1e3"])
def test_bad_durations_name_their_option(text):
    with pytest.raises(InvalidArgumentError, match=f"option retry_for: '{text}'"):
        seconds_of({"retry_for": text}, "retry_for", 1.0)


def test_unknown_options_are_refused_by_name_but_not_sparks_own():
    refuse_unknown({"Queue": "q", "checkpointLocation": "/c", "path": "p"}, OPTIONS)
    with pytest.raises(InvalidArgumentError, match=r"unknown option 'dedup_windov': the options here are .*dedup_window"):
        refuse_unknown({"dedup_windov": "5m"}, OPTIONS)


def test_an_intake():
    intake = PartitionIntake.of({"queue": "q", "dedup_window": "90s", "job": "nightly"})
    assert (intake.queue, intake.dedup_window_ms, intake.retry_for_s) == ("q", 90_000, 120.0)
    assert pickle.loads(pickle.dumps(intake)) == intake
    assert intake.job.scope() == PartitionIntake.of({"job": "nightly"}).job.scope()


def test_two_intakes_without_a_name_are_two_jobs():
    assert PartitionIntake.of({}).job.scope() != PartitionIntake.of({}).job.scope()
    assert PartitionIntake.of({}).dedup_window_ms == 0
