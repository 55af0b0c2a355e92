"""When processes are started, drained and killed."""

from random import Random

import pytest

from fila_cluster.run.work.roster import (
    HURRY_S,
    MARGIN_S,
    Action,
    Died,
    Drain,
    Kill,
    RenewalFailed,
    Renewed,
    Roster,
    Start,
)

GRACE_S = 25.0


@pytest.fixture
def roster() -> Roster:
    """Two processes that serve: 1 and 2."""
    roster = Roster(2, GRACE_S)
    assert roster.start() == [Start(1), Start(2)]
    assert roster.ready(1, 0) == []
    assert not roster.was_ready
    assert roster.ready(2, 0) == []
    assert roster.was_ready
    assert roster.serving == 2
    return roster


def test_a_first_start_that_fails_stops_all() -> None:
    roster = Roster(2, GRACE_S)
    roster.start()
    roster.ready(1, 0)
    assert roster.ended(2, 1, 0) == [Drain(1)]
    assert roster.failed
    assert not roster.finished
    assert roster.ended(1, 0, 1) == []
    assert roster.finished


def test_a_process_that_dies_is_started_again_at_once_and_then_with_pauses(roster: Roster) -> None:
    assert roster.ended(1, -9, 100) == [Died(1, -9, 0.0)]
    assert roster.due_at() == 100
    assert roster.tick(100) == [Start(3)]
    assert roster.ended(3, 1, 100.5) == [Died(3, 1, 0.1)]
    assert roster.tick(100.55) == []
    assert roster.tick(100.6) == [Start(4)]
    assert roster.ended(4, 1, 101) == [Died(4, 1, 0.2)]
    assert not roster.failed


def test_a_renewal_starts_the_next_process_before_it_drains_the_last(roster: Roster) -> None:
    assert roster.renew(10) == [Start(3)]
    assert roster.serving == 2
    assert roster.ready(3, 11) == [Drain(1)]
    assert roster.serving == 2
    assert roster.ended(1, 0, 12) == [Start(4)]
    assert roster.ready(4, 13) == [Drain(2)]
    assert roster.ended(2, 0, 14) == [Renewed()]
    assert roster.serving == 2
    assert roster.due_at() is None


def test_a_change_that_does_not_start_replaces_nothing(roster: Roster) -> None:
    assert roster.renew(10) == [Start(3)]
    assert roster.ended(3, 1, 11) == [RenewalFailed(3, 1)]
    assert roster.serving == 2
    assert roster.due_at() is None
    assert roster.renew(20) == [Start(4)]


def test_a_second_change_while_a_new_process_starts_begins_anew(roster: Roster) -> None:
    roster.renew(10)
    assert roster.renew(11) == [Drain(3)]
    assert roster.ended(3, -15, 12) == [Start(4)]
    assert roster.ready(4, 13) == [Drain(1)]


def test_a_second_change_later_in_a_renewal_follows_it(roster: Roster) -> None:
    roster.renew(10)
    roster.ready(3, 11)
    assert roster.renew(12) == []
    assert roster.ended(1, 0, 13) == [Start(4)]
    roster.ready(4, 14)
    assert roster.ended(2, 0, 15) == [Start(5)]


def test_an_old_process_that_dies_while_its_successor_starts_is_replaced_by_it(roster: Roster) -> None:
    roster.renew(10)
    assert roster.ended(1, -9, 11) == []
    assert roster.ready(3, 12) == [Start(4)]


def test_a_place_that_waits_for_its_restart_is_renewed_by_it(roster: Roster) -> None:
    roster.ended(1, 1, 10)
    assert roster.renew(10) == [Start(3)]
    assert roster.tick(100) == []
    assert roster.ready(3, 11) == [Start(4)]


def test_a_stop_drains_all_then_hurries_then_kills(roster: Roster) -> None:
    assert roster.stop(10) == [Drain(1), Drain(2)]
    assert roster.due_at() == 10 + GRACE_S + MARGIN_S
    assert roster.stop(11) == [Drain(1), Drain(2)]
    assert roster.due_at() == 11 + HURRY_S
    assert roster.stop(12) == [Kill(1), Kill(2)]
    assert roster.ended(1, -9, 13) == []
    assert roster.ended(2, -9, 13) == []
    assert roster.finished
    assert not roster.failed


def test_a_process_that_does_not_end_in_time_is_killed(roster: Roster) -> None:
    roster.renew(10)
    roster.ready(3, 11)
    assert roster.tick(11 + GRACE_S + MARGIN_S - 0.1) == []
    assert roster.tick(11 + GRACE_S + MARGIN_S) == [Kill(1)]
    assert roster.ended(1, -9, 50) == [Start(4)]


def test_nothing_is_started_while_it_stops(roster: Roster) -> None:
    roster.ended(1, 1, 10)
    assert roster.stop(10) == [Drain(2)]
    assert roster.renew(11) == []
    assert roster.tick(100) == [Kill(2)]
    assert roster.ended(2, -9, 101) == []
    assert roster.finished


def test_a_process_that_nobody_knows_changes_nothing(roster: Roster) -> None:
    assert roster.ended(99, 1, 10) == []
    assert roster.ready(99, 10) == []


class Machine:
    """Processes that do as the roster says, and what they please besides."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.alive: dict[int, str] = {}
        self.draining: set[int] = set()

    def obey(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(number):
                    assert number not in self.alive
                    self.alive[number] = "starting"
                case Drain(number):
                    assert number in self.alive
                    self.draining.add(number)
                case Kill(number):
                    self.end(number, 0.0)

    def end(self, number: int, now: float) -> None:
        del self.alive[number]
        self.draining.discard(number)
        self.obey(self.roster.ended(number, -9, now))


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_all_places_serve_in_the_end_and_all_end_after_a_stop(seed: int) -> None:
    """Deaths, renewals and ready processes in any order: never more than two processes for a place, and a drain is obeyed."""
    random, now = Random(seed), 0.0
    roster = Roster(3, GRACE_S)
    machine = Machine(roster)
    machine.obey(roster.start())
    for number in list(machine.alive):
        machine.alive[number] = "serving"
        machine.obey(roster.ready(number, now))
    for _ in range(200):
        now += random.random()
        if machine.alive:
            number = random.choice(list(machine.alive))
            match random.randrange(6):
                case 0:
                    machine.end(number, now)
                case 1:
                    machine.obey(roster.renew(now))
                case 2 | 3 if machine.alive[number] == "starting":
                    machine.alive[number] = "serving"
                    machine.obey(roster.ready(number, now))
                case 4 if machine.draining:
                    machine.end(random.choice(list(machine.draining)), now)
        machine.obey(roster.tick(now))
        assert len(machine.alive) <= 6
        assert roster.serving <= 6
    for _ in range(50):  # now all do as they should
        now += 10
        for number in list(machine.draining):
            machine.end(number, now)
        for number, state in list(machine.alive.items()):
            if state == "starting" and number in machine.alive:
                machine.alive[number] = "serving"
                machine.obey(roster.ready(number, now))
        machine.obey(roster.tick(now))
    assert roster.serving == len(machine.alive) == 3
    machine.obey(roster.stop(now))
    assert machine.draining == set(machine.alive)
    for number in list(machine.alive):
        machine.end(number, now)
    assert roster.finished
