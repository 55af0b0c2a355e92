"""Timers: what is due is called once, in the order of the dates."""

import math

from fila_cluster.client.protocol.timers import Timers


def test_what_is_due_is_called_once_in_order():
    called = []
    timers = Timers()
    assert timers.due_at == math.inf
    for when in (3.0, 1.0, 2.0, 1.0):
        timers.at(when, lambda when=when: called.append(when))
    assert timers.due_at == 1.0
    timers.tick(0.5)
    assert called == []
    timers.tick(2.0)
    timers.tick(2.5)
    assert called == [1.0, 1.0, 2.0]
    assert timers.due_at == 3.0


def test_a_cancelled_timer_is_not_called():
    called = []
    timers = Timers()
    first, second = timers.at(1.0, lambda: called.append(1)), timers.at(1.0, lambda: called.append(2))
    timers.cancel(first)
    timers.cancel(first)
    timers.tick(1.0)
    timers.cancel(second)
    assert called == [2]
    assert len(timers) == 0


def test_a_timer_may_set_another_one():
    called = []
    timers = Timers()
    timers.at(1.0, lambda: timers.at(2.0, lambda: called.append("second")))
    timers.tick(3.0)
    assert called == ["second"]


def test_cancelled_timers_do_not_pile_up():
    timers = Timers()
    kept = timers.at(1e9, lambda: None)
    for number in range(10_000):
        timers.cancel(timers.at(float(number), lambda: None))
    assert len(timers) < 200
    assert kept.then is not None
