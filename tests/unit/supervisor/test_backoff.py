"""The pauses before restarts."""

from fila_cluster.supervisor.backoff import HEALTHY_S, Backoff


def test_they_double_up_to_a_limit():
    backoff = Backoff()
    assert [backoff.delay_s(1.0) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_healthy_life_ends_the_series():
    backoff = Backoff()
    for _ in range(5):
        backoff.delay_s(0.0)
    assert backoff.delay_s(HEALTHY_S) == 0.1
    assert backoff.delay_s(0.0) == 0.2
