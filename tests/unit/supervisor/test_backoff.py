"""The pauses before restarts."""

from fila_cluster.supervisor.child import HEALTHY_S, Backoff


def test_the_first_restart_is_at_once_then_pauses_double_up_to_a_limit():
    backoff = Backoff()
    assert [backoff.delay_s(1.0) for _ in range(9)] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_child_that_has_served_for_a_while_is_restarted_at_once():
    backoff = Backoff()
    for _ in range(5):
        backoff.delay_s(0.0)
    assert backoff.delay_s(HEALTHY_S) == 0.0
    assert backoff.delay_s(0.0) == 0.1


def test_one_that_is_killed_every_few_seconds_never_waits():
    backoff = Backoff()
    assert {backoff.delay_s(HEALTHY_S) for _ in range(100)} == {0.0}
