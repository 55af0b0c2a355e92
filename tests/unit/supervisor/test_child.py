"""A child process: the pauses before its restarts, and when it is taken for hung."""

import os
import socket
from pathlib import Path

import pytest

from fila_cluster.run.supervisor.child import (
    HEALTHY_S,
    HUNG_S,
    Child,
    Liveness,
    RestartBackoff,
    describe_exit,
    without_secrets,
)
from fila_process.parent import BEAT_S, DEPOSED, ParentHeartbeat


def test_the_first_restart_is_at_once_then_pauses_double_up_to_a_limit():
    backoff = RestartBackoff()
    assert [backoff.delay_s(1.0) for _ in range(9)] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_child_that_has_served_for_a_while_is_restarted_at_once():
    backoff = RestartBackoff()
    for _ in range(5):
        backoff.delay_s(0.0)
    assert backoff.delay_s(HEALTHY_S) == 0.0
    assert backoff.delay_s(0.0) == 0.1


def test_one_that_is_killed_every_few_seconds_never_waits():
    backoff = RestartBackoff()
    assert {backoff.delay_s(HEALTHY_S) for _ in range(100)} == {0.0}


def test_one_that_was_deposed_is_restarted_at_once_and_was_well(tmp_path: Path):
    child = Child("worker-0", "fila_worker", b"", tmp_path, 0)
    for _ in range(5):
        assert child.schedule_restart(100.0, deposed=True) == 0.0
        assert child.restart_at == 100.0
    assert child.schedule_restart(100.0) == 0.0, "no death was counted before"
    assert child.schedule_restart(100.0) == 0.1


def test_a_part_has_no_secrets_in_its_environment(monkeypatch: pytest.MonkeyPatch):
    names = ("FILA_API_KEY", "FILA_WORKER_TOKEN", "FILA_REPLICATION__PROPERTIES", "fila_replication__properties")
    for name in (*names, "FILA_REPLICATION__LOG"):
        monkeypatch.setenv(name, "sasl.password=hidden")
    assert not {*names} & without_secrets().keys()
    assert "FILA_REPLICATION__LOG" in without_secrets()


def test_an_exit_is_said_in_words():
    assert describe_exit(1) == "exited with code 1"
    assert describe_exit(DEPOSED) == "was deposed: another host leads a shard that it led"
    assert describe_exit(-9) == "was killed by signal 9 (Killed)"


def test_a_start_may_take_long():
    assert Liveness().silent_s(1e6) == 0


def test_silence_counts_from_the_last_sign_of_life_on():
    liveness = Liveness()
    liveness.heard(100.0)
    liveness.heard(105.0)
    assert liveness.silent_s(105.0 + HUNG_S) == HUNG_S


def test_silence_during_a_pause_of_the_listener_is_excused():
    liveness = Liveness()
    liveness.excuse(50.0)
    assert liveness.silent_s(1000.0) == 0, "still before its first byte"
    liveness.heard(100.0)
    liveness.excuse(900.0)
    assert liveness.silent_s(901.0) == 1


def test_service_is_counted_in_beats_whenever_they_are_heard():
    liveness = Liveness()
    assert liveness.served_s == 0, "a start, however long, is no service"
    liveness.heard(100.0)
    assert liveness.served_s == 0
    liveness.heard(150.0, beats=3)
    assert liveness.served_s == 3 * BEAT_S


def test_a_heart_beats_once_a_second(monkeypatch: pytest.MonkeyPatch):
    ours, theirs = socket.socketpair()
    now_s = [100.0]
    monkeypatch.setattr("fila_process.parent.time.monotonic", lambda: now_s[0])
    with ours, theirs:
        heartbeat = ParentHeartbeat(theirs.fileno())
        for now_s[0] in (100.0, 100.5, 101.0, 101.9, 102.0):
            heartbeat.beat()
        assert len(ours.recv(100)) == 3
        heartbeat.close()


def test_a_parent_that_does_not_read_holds_up_no_heartbeat():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        heartbeat = ParentHeartbeat(theirs.fileno())
        theirs.setblocking(True)
        for _ in range(100_000):
            heartbeat._next_s = 0.0
            heartbeat.beat()
        heartbeat.close()


def test_without_a_socket_nothing_is_written():
    reader, writer = os.pipe()
    ParentHeartbeat(reader).beat()
    ParentHeartbeat(writer).beat()
    os.close(writer)
    assert os.read(reader, 10) == b""
    os.close(reader)
