"""A member of a replicated shard: its copy, the log and its leadership together."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fila_worker.log.bodies import Node
from fila_worker.log.leadership import LeadershipState
from fila_worker.log.member import Member
from fila_worker.storage.replica import Replica
from tests.support.memory_log import MemoryLog, MemoryPartition

FIRST, LAST = b"", b"\xff" * 300


class Site:
    """A host with a copy of the shard."""

    def __init__(self, cluster: "MemberCluster", name: str, home: Path) -> None:
        self.cluster, self.name, self.home = cluster, name, home
        self.partition = MemoryPartition(cluster.log, lambda: cluster.now_ms)
        self.member = self.opened()

    def opened(self) -> Member:
        return Member(
            self.partition, Replica(self.home), Node(self.name, self.name), self.cluster.now_ms, record_bytes_max=200
        )

    def restart(self) -> None:
        """End in good order for the disk, and none for the log."""
        self.member.close()
        self.member = self.opened()

    def step(self) -> None:
        member = self.member
        if member.ended:
            return
        member.step(self.cluster.now_ms)
        if member.leads and not member.serves and not member.leaves:
            member.recovered(self.cluster.now_ms)
        if member.leaves:
            member.stopped(self.cluster.now_ms)

    def commit(self, *keys: bytes, size: int = 10) -> None:
        copy = self.member.copy
        batch = copy.new_batch()
        for key in keys:
            batch.put(key, bytes(size), copy.families.queues)
        copy.commit(batch)

    @property
    def items(self) -> list[bytes]:
        copy = self.member.copy
        return [key for key, _ in copy.scan(FIRST, LAST, copy.families.queues)]

    @property
    def unconfirmed(self) -> int:
        return self.member.copy.committed - self.member.copy.confirmed


class MemberCluster:
    """One log, some hosts, and a clock."""

    def __init__(self, tmp_path: Path, count: int) -> None:
        self.now_ms = 1_000_000
        self.log = MemoryLog()
        self.sites = [Site(self, name, tmp_path / name) for name in "abc"[:count]]

    def pass_ms(self, span_ms: int, *sites: Site, step_ms: int = 50) -> None:
        """Let time pass for some of the hosts; for all, if none is named. The others do not run."""
        for _ in range(span_ms // step_ms):
            self.now_ms += step_ms
            for site in sites or self.sites:
                site.step()

    def until(self, what: Callable[[], bool], *sites: Site, within_ms: int = 20_000) -> int:
        """Let time pass until something holds; return how long it took."""
        began_ms = self.now_ms
        while not what():
            assert self.now_ms - began_ms <= within_ms, "it takes too long"
            self.pass_ms(50, *sites)
        return self.now_ms - began_ms

    def lead(self, site: Site) -> None:
        """Have one host lead, and the others follow it."""
        self.until(lambda: site.member.serves, site)
        self.pass_ms(2000)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[[int], MemberCluster]]:
    clusters: list[MemberCluster] = []

    def make(count: int) -> MemberCluster:
        clusters.append(MemberCluster(tmp_path, count))
        return clusters[-1]

    yield make
    for cluster in clusters:
        for site in cluster.sites:
            site.member.close()


def test_the_first_member_leads_and_the_others_have_what_it_commits(made: Callable[[int], MemberCluster]) -> None:
    cluster = made(3)
    first, *others = cluster.sites
    cluster.lead(first)
    first.commit(b"one", b"two")
    first.commit(b"three", size=500)  # in several records
    cluster.pass_ms(200)
    assert first.unconfirmed == 0
    assert [site.items for site in cluster.sites] == [[b"one", b"three", b"two"]] * 3
    assert [site.member.leads for site in others] == [False, False]
    assert [site.member.behind for site in others] == [0, 0]


def test_a_silent_leader_is_replaced_and_ends_when_it_may_be_ahead(made: Callable[[int], MemberCluster]) -> None:
    cluster = made(2)
    old, new = cluster.sites
    cluster.lead(old)
    old.commit(b"one")
    cluster.pass_ms(200)
    old.partition.held = True
    old.commit(b"never confirmed")
    took_ms = cluster.until(lambda: new.member.serves, new)
    assert 5_000 < took_ms < 8_000
    new.commit(b"two")
    old.partition.appenders[-1].arrive()  # behind the new marker
    old.partition.appenders[-1].report()
    old.partition.held = False
    cluster.pass_ms(500)
    assert old.member.ended
    assert not old.member.serves
    assert (old.unconfirmed, new.items) == (1, [b"one", b"two"])
    old.restart()
    cluster.pass_ms(1000)
    assert old.items == [b"one", b"two"]


def test_a_replaced_leader_without_anything_unconfirmed_follows_again(made: Callable[[int], MemberCluster]) -> None:
    cluster = made(2)
    old, new = cluster.sites
    cluster.lead(old)
    cluster.until(lambda: new.member.serves, new)
    cluster.pass_ms(3000)
    assert (old.member.ended, old.member.leads, old.member.leadership.state) == ("", False, LeadershipState.FOLLOWS)
    new.commit(b"one")
    cluster.pass_ms(200)
    assert old.items == [b"one"]


def test_a_leader_that_leaves_hands_over_without_a_gap(made: Callable[[int], MemberCluster]) -> None:
    cluster = made(3)
    old, other, new = cluster.sites
    cluster.lead(old)
    old.commit(b"one")
    old.member.leadership.leave("c", cluster.now_ms)
    assert cluster.until(lambda: new.member.serves) < 1000
    new.commit(b"two")
    cluster.pass_ms(500)
    assert [site.items for site in cluster.sites] == [[b"one", b"two"]] * 3
    assert [site.member.leads for site in (old, other)] == [False, False]


def test_a_step_of_a_copy_that_catches_up_is_bounded_in_bytes(
    made: Callable[[int], MemberCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fila_worker.log.member.READ_BYTES_MAX", 1000)
    cluster = made(2)
    leader, follower = cluster.sites
    cluster.lead(leader)
    for number in range(60):
        leader.commit(bytes([number]), size=100)
    follower.step()
    assert 7 <= len(follower.items) <= 12
    assert follower.member.reads_on
    for _ in range(10):
        follower.step()
    assert (len(follower.items), follower.member.reads_on) == (60, False)


def test_a_host_that_wishes_for_a_shard_gets_it(made: Callable[[int], MemberCluster]) -> None:
    cluster = made(2)
    old, new = cluster.sites
    cluster.lead(old)
    new.member.leadership.wants = True
    cluster.until(lambda: new.member.serves)
    new.commit(b"one")
    cluster.pass_ms(500)
    assert (old.items, old.member.ended) == ([b"one"], "")


def test_a_wish_that_failed_delays_no_claim(made: Callable[[int], MemberCluster]) -> None:
    cluster = made(2)
    old, new = cluster.sites
    cluster.lead(old)
    new.partition.held = True
    new.member.leadership.wants = True
    appender = new.partition.appenders[-1]
    cluster.until(lambda: appender.on_the_way > 0)
    appender.fail("timed out")
    new.partition.held = new.member.leadership.wants = False
    new.partition.tails[-1].answer()
    cluster.pass_ms(1000)
    assert cluster.until(lambda: new.member.serves, new) < 7_000


def test_a_leader_asks_its_owner_before_it_gives_the_shard_away(made: Callable[[int], MemberCluster]) -> None:
    cluster = made(2)
    old, new = cluster.sites
    cluster.lead(old)
    asked: list[tuple[str, int]] = []
    old.member.may_give = lambda host, now_ms: bool(asked.append((host, now_ms)))
    new.member.leadership.wants = True
    cluster.until(lambda: bool(asked))
    cluster.pass_ms(2000)
    assert old.member.serves
    assert [host for host, _ in asked] == ["b"]
    old.member.may_give = lambda host, now_ms: True
    cluster.until(lambda: new.member.serves)


@pytest.mark.parametrize("how", ["no offset", "twice", "first of two"])
def test_what_the_log_reports_badly_is_found_where_it_is(made: Callable[[int], MemberCluster], how: str) -> None:
    cluster = made(2)
    leader, follower = cluster.sites
    cluster.lead(leader)
    leader.partition.held = True
    appender = leader.partition.appenders[-1]
    leader.commit(b"one")
    leader.commit(b"two")
    appender.arrive()
    if how != "no offset":
        appender.repeat(reported=how == "twice")
    appender.report(offset=how != "no offset")
    appender.arrive()
    appender.report()
    cluster.pass_ms(50, leader)
    leader.partition.held = False
    appender.go_on()
    for tail in leader.partition.tails:
        tail.answer()
    cluster.pass_ms(1000)
    assert leader.unconfirmed == 0
    assert leader.items == follower.items == [b"one", b"two"]
    leader.commit(b"three")
    cluster.pass_ms(200)
    assert (leader.unconfirmed, follower.items) == (0, [b"one", b"three", b"two"])


def test_a_commit_of_unknown_outcome_ends_the_process(made: Callable[[int], MemberCluster]) -> None:
    cluster = made(1)
    (leader,) = cluster.sites
    cluster.lead(leader)
    leader.partition.held = True
    leader.commit(b"one")
    leader.partition.appenders[-1].fail("timed out")
    cluster.pass_ms(50)
    assert "timed out" in leader.member.ended
    assert (leader.unconfirmed, leader.member.serves) == (1, False)


def test_a_leader_cut_off_from_the_log_stops_serving_and_serves_again_when_it_is_back(
    made: Callable[[int], MemberCluster],
) -> None:
    cluster = made(1)
    (leader,) = cluster.sites
    cluster.lead(leader)
    cluster.log.reachable = False
    leader.commit(b"one")
    assert cluster.until(lambda: not leader.member.serves) < 10_000
    assert leader.unconfirmed == 1
    cluster.log.reachable = True
    cluster.until(lambda: leader.member.serves)
    assert (leader.unconfirmed, leader.member.ended) == (0, "")


def test_a_process_that_starts_again_leads_at_once(made: Callable[[int], MemberCluster]) -> None:
    cluster = made(2)
    leader, _ = cluster.sites
    cluster.lead(leader)
    leader.commit(b"one")
    cluster.pass_ms(200)
    leader.restart()
    assert cluster.until(lambda: leader.member.serves) < 1000
    assert leader.items == [b"one"]
