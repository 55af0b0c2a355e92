"""Hosts lead and follow shards by their logs alone, whatever happens to processes, clocks and the way to the log.

That nothing confirmed is lost or doubled is the rule's promise (``test_log_duels.py``). Here it is about who serves, when and where. The
same is checked in each run: effects that left a process are of turns that all replay, and no process takes a turn without proof that it leads.
"""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.hosts.log_hosts import Host, World

pytestmark = pytest.mark.whole

SEEDS = st.integers(0, 2**32)
SETTLED_MS = 60_000
"""By then a new cluster has spread its shards."""


def settled(seed: int, *, hosts: int = 3, shards: int = 4) -> World:
    world = World(seed, hosts, shards)
    world.start()
    world.run_until(SETTLED_MS)
    world.check_that_it_is_whole()
    return world


def led_by(world: World, host: Host) -> list[int]:
    return [shard for shard in range(world.shards) if world.leader(shard) is host]


@given(SEEDS, st.integers(2, 5), st.integers(1, 6))
@settings(max_examples=20)
def test_after_all_faults_each_shard_is_served_and_the_spread_is_even(seed: int, hosts: int, shards: int) -> None:
    world = World(seed, hosts, shards)
    world.start()
    world.run_until(world.random.randint(0, 20_000))
    world.trouble(world.now_ms + 50_000)
    world.heal()
    healed_ms = world.now_ms
    world.run_until(healed_ms + 20_000)
    for shard in range(shards):
        assert len(world.serving(shard)) == 1, f"shard {shard}"
    world.run_until(healed_ms + 110_000)
    world.check_that_it_is_whole()
    world.check_what_was_released()
    begun = [reign for reign in world.reigns if reign.began_ms > healed_ms + 20_000]
    assert len(begun) <= shards, "there were more hand-overs than shards"
    assert not [reign for reign in begun if reign.began_ms > healed_ms + 90_000], "it does not come to rest"
    assert all(world.gap(shard, healed_ms + 20_000) < 2000 for shard in range(shards))


@given(SEEDS)
@settings(max_examples=4)
def test_a_killed_leader_is_replaced_within_ten_seconds(seed: int) -> None:
    world = settled(seed)
    host = world.leader(0)
    lost = led_by(world, host)
    others = set(range(world.shards)) - set(lost)
    killed_ms, before = world.now_ms, len(world.reigns)
    host.kill(60_000)
    world.run_until(killed_ms + 9000)
    for shard in lost:
        assert len(world.serving(shard)) == 1
        assert world.gap(shard, killed_ms) < 9000
    assert {reign.shard for reign in world.reigns[before:]} == set(lost), f"{others} are not interrupted"
    world.run_until(killed_ms + 50_000)
    assert sorted(world.led()) == [0, 2, 2], "its shards go to both others"
    world.check_what_was_released()


@given(SEEDS, st.integers(0, 2000))
@settings(max_examples=3)
def test_a_process_that_starts_again_takes_back_what_nobody_else_has_taken(seed: int, down_ms: int) -> None:
    world = settled(seed)
    host = world.leader(0)
    lost, killed_ms = led_by(world, host), world.now_ms
    host.kill(down_ms)
    world.run_until(killed_ms + 6000)
    assert led_by(world, host) == lost
    listens_ms = world.placing.learn_ms + 500  # for another process with its name
    assert all(world.gap(shard, killed_ms) < down_ms + listens_ms + 1500 for shard in lost)


@given(SEEDS)
@settings(max_examples=3)
def test_a_cluster_that_was_killed_comes_back_as_it_was(seed: int) -> None:
    world = settled(seed)
    before, killed_ms = [world.leader(shard) for shard in range(world.shards)], world.now_ms
    for host in world.machines:
        host.kill(world.random.randint(0, 3000))
    world.run_until(killed_ms + 7000)
    assert [world.leader(shard) for shard in range(world.shards)] == before
    hand_overs = len(world.reigns)
    world.run_until(killed_ms + 60_000)
    assert len(world.reigns) == hand_overs


@given(SEEDS)
@settings(max_examples=4)
def test_a_leader_that_is_cut_off_from_the_log_ends_its_reign_and_comes_back_as_a_follower(seed: int) -> None:
    world = settled(seed)
    host = world.leader(0)
    lost, cut_ms = led_by(world, host), world.now_ms
    host.cut(30_000)
    world.run_until(cut_ms + 10_000)
    for shard in lost:
        (reign,) = world.serving(shard)
        assert reign.host != host.name
        assert all(each.ended_ms for each in world.reigns if each.shard == shard and each.host == host.name)
    world.run_until(cut_ms + 40_000)
    assert host.process is not None
    assert all(host.process.replicas[shard].writer is None for shard in lost if world.leader(shard) is not host)
    world.run_until(cut_ms + 120_000)
    world.check_that_it_is_whole()
    world.check_what_was_released()


@given(SEEDS)
@settings(max_examples=4)
def test_a_paused_leader_is_replaced_and_does_nothing_when_it_wakes(seed: int) -> None:
    world = settled(seed)
    host = world.leader(0)
    lost, paused_ms = led_by(world, host), world.now_ms
    host.pause(20_000)
    world.run_until(paused_ms + 10_000)
    for shard in lost:
        assert [reign for reign in world.serving(shard) if reign.host != host.name]
    assert host.process is not None
    turns = {shard: host.process.replicas[shard].turns for shard in lost}
    released = len(world.released)
    world.run_until(paused_ms + 20_300)
    assert not [each for each in world.reigns if each.host == host.name and each.ended_ms is None and each.shard in lost]
    epochs = {(reign.shard, reign.epoch) for reign in world.reigns if reign.host == host.name}
    for shard, epoch, body in world.released[released:]:
        if (shard, epoch) in epochs and shard in lost:
            assert int(body.rpartition(b"/")[2]) <= turns[shard], "it took a turn after it was deposed"
    world.run_until(paused_ms + 120_000)
    world.check_that_it_is_whole()
    world.check_what_was_released()


@given(SEEDS)
@settings(max_examples=4)
def test_a_log_that_stalls_moves_no_leader(seed: int) -> None:
    world = settled(seed)
    reigns, now_ms = len(world.reigns), world.now_ms
    world.stalled_until = [now_ms + world.random.randint(0, 7000) for _ in world.logs]
    world.run_until(now_ms + 30_000)
    assert len(world.reigns) == reigns
    assert not world.ends


@given(SEEDS)
@settings(max_examples=4)
def test_a_process_that_is_asked_to_end_leaves_no_gap(seed: int) -> None:
    world = settled(seed)
    host = world.leader(0)
    lost, asked_ms = led_by(world, host), world.now_ms
    host.terminate()
    world.run_until(asked_ms + 3000)
    assert host.process is None
    for shard in range(world.shards):
        assert len(world.serving(shard)) == 1
        assert world.gap(shard, asked_ms) < (1000 if shard in lost else 1)
    host.back()
    world.run_until(asked_ms + 90_000)
    world.check_that_it_is_whole()


@given(SEEDS)
@settings(max_examples=3)
def test_a_host_that_drains_gives_up_one_shard_after_the_other(seed: int) -> None:
    world = settled(seed, shards=6)
    host = world.leader(0)
    lost, asked_ms, reigns = led_by(world, host), world.now_ms, len(world.reigns)
    host.drains = True
    world.run_until(asked_ms + 30_000)
    assert led_by(world, host) == []
    assert sorted(reign.shard for reign in world.reigns[reigns:]) == lost, "each moves once, and no other"
    assert all(world.gap(shard, asked_ms) < 1000 for shard in range(world.shards))
    begun = sorted(reign.began_ms for reign in world.reigns[reigns:])
    assert all(later - earlier > 500 for earlier, later in itertools.pairwise(begun))


@given(SEEDS)
@settings(max_examples=3)
def test_a_host_that_reaches_no_other_one_gives_up_its_shards_and_gets_its_part_back(seed: int) -> None:
    """The log hears it, so nobody else would claim them, and most clients can't reach it."""
    world = settled(seed, shards=6)
    host = world.leader(0)
    lost, parted_ms, reigns = led_by(world, host), world.now_ms, len(world.reigns)
    host.part(40_000)
    world.run_until(parted_ms + 12_000)
    assert led_by(world, host) == []
    assert sorted(reign.shard for reign in world.reigns[reigns:]) == lost, "no other one is interrupted"
    world.run_until(parted_ms + 40_000)
    assert led_by(world, host) == []
    world.run_until(parted_ms + 130_000)
    world.check_that_it_is_whole()
    assert len(world.reigns) - reigns == 2 * len(lost), "each moves away and back once"
    world.check_what_was_released()


@given(SEEDS, st.integers(2, 3))
@settings(max_examples=3)
def test_hosts_of_which_none_reaches_another_give_up_nothing(seed: int, hosts: int) -> None:
    world = settled(seed, hosts=hosts)
    parted_ms, reigns = world.now_ms, len(world.reigns)
    for host in world.machines[: hosts - 1]:
        host.part(40_000)
    world.run_until(parted_ms + 60_000)
    assert len(world.reigns) == reigns


@given(SEEDS)
@settings(max_examples=3)
def test_a_host_that_returns_gets_its_part_without_a_storm(seed: int) -> None:
    world = settled(seed, shards=6)
    host = world.leader(0)
    lost = led_by(world, host)
    host.kill(40_000)
    world.run_until(world.now_ms + 40_000)
    back_ms, reigns = world.now_ms, len(world.reigns)
    world.run_until(back_ms + 90_000)
    world.check_that_it_is_whole()
    assert len(world.reigns) - reigns == len(lost), "as many moves as the spread needs"
    assert all(world.gap(shard, back_ms) < 1000 for shard in range(world.shards))


@given(SEEDS)
@settings(max_examples=3)
def test_hosts_that_start_together_on_a_new_log_claim_what_the_plan_says(seed: int) -> None:
    world = World(seed, 4, 6)
    world.start()
    world.run_until(10_000)
    world.check_that_it_is_whole()
    assert (world.markers, len(world.reigns), world.ends) == (6, 6, []), "no shard was claimed twice"
    world.run_until(SETTLED_MS)
    assert len(world.reigns) == 6, "and none moves"


@given(SEEDS)
@settings(max_examples=3)
def test_without_the_control_partition_leaders_serve_and_are_replaced_and_nothing_else_moves(seed: int) -> None:
    world = settled(seed, shards=6)
    lost_ms, reigns = world.now_ms, len(world.reigns)
    world.control_lost_until = lost_ms + 100_000
    host = world.leader(0)
    lost = led_by(world, host)
    world.run_until(lost_ms + 20_000)
    assert len(world.reigns) == reigns
    host.kill(10_000)
    world.run_until(lost_ms + 30_000)
    assert sorted(reign.shard for reign in world.reigns[reigns:]) == lost
    world.run_until(lost_ms + 100_000)
    assert len(world.reigns) == reigns + len(lost), "it is back, and can't say so"
    assert not world.ends, "the lines are as they were, so there is no duel"
    world.run_until(lost_ms + 160_000)
    world.check_that_it_is_whole()
    assert len(world.reigns) == reigns + 2 * len(lost)
    world.check_what_was_released()


@given(SEEDS)
@settings(max_examples=3)
def test_a_host_whose_copies_are_behind_gets_nothing(seed: int) -> None:
    world = settled(seed, shards=6)
    host = world.leader(0)
    host.terminate()
    world.run_until(world.now_ms + 60_000)
    reigns = len(world.reigns)
    host.slow_until = world.now_ms + 30_000
    host.back()
    world.run_until(host.slow_until)
    assert len(world.reigns) == reigns
    world.run_until(host.slow_until + 60_000)
    world.check_that_it_is_whole()
    assert len(world.reigns) == reigns + 2


@given(SEEDS)
@settings(max_examples=3)
def test_a_host_with_a_full_disk_leaves_its_shards_and_leads_again_when_it_has_room(seed: int) -> None:
    world = settled(seed, shards=6)
    host = world.leader(0)
    lost, full_ms, reigns = led_by(world, host), world.now_ms, len(world.reigns)
    host.full = True
    world.run_until(full_ms + 15_000)
    assert led_by(world, host) == []
    assert sorted(reign.shard for reign in world.reigns[reigns:]) == lost, "each moves once, and no other"
    assert all(world.gap(shard, full_ms) < 1000 for shard in range(world.shards))
    host.kill(500)
    world.run_until(full_ms + 60_000)
    assert len(world.reigns) == reigns + len(lost), "it does not take anything again"
    host.full = False
    world.run_until(full_ms + 150_000)
    world.check_that_it_is_whole()
    assert len(world.reigns) == reigns + 2 * len(lost)


@given(SEEDS)
@settings(max_examples=3)
def test_a_leader_that_ends_with_a_full_disk_does_not_take_its_shards_again(seed: int) -> None:
    world = settled(seed, shards=6)
    host = world.leader(0)
    ended_ms, reigns = world.now_ms, len(world.reigns)
    host.full = True
    host.kill(100)
    world.run_until(ended_ms + 12_000)
    assert not [reign for reign in world.reigns[reigns:] if reign.host == host.name]
    for shard in range(world.shards):
        assert len(world.serving(shard)) == 1
        assert world.gap(shard, ended_ms) < 9000


@given(SEEDS, st.integers(1, 3))
@settings(max_examples=3)
def test_hosts_whose_disks_are_all_full_serve_on(seed: int, hosts: int) -> None:
    world = settled(seed, hosts=hosts)
    full_ms, reigns = world.now_ms, len(world.reigns)
    for host in world.machines:
        host.full = True
    world.run_until(full_ms + 30_000)
    moved = len(world.reigns) - reigns
    world.run_until(full_ms + 90_000)
    assert len(world.reigns) == reigns + moved, "it comes to rest"
    assert moved <= 1, "they do not find out in the same moment"
    assert all(world.gap(shard, full_ms) < 1000 for shard in range(world.shards))
    killed_ms = world.now_ms
    world.machines[0].kill(100)
    world.run_until(killed_ms + 12_000)
    assert all(len(world.serving(shard)) == 1 for shard in range(world.shards))


@given(SEEDS, st.integers(0, 3000))
@settings(max_examples=5)
def test_a_copy_of_a_machine_deposes_nobody_and_ends(seed: int, wait_ms: int) -> None:
    world = settled(seed)
    world.run_until(world.now_ms + wait_ms)
    host = world.leader(0)
    reigns, copied_ms = len(world.reigns), world.now_ms
    twin = host.clone()
    world.run_until(copied_ms + 30_000)
    assert [each for _, each in world.twins] == [twin]
    assert twin.process is None
    assert len(world.reigns) == reigns, "the one that was there serves on"
    assert all(world.gap(shard, copied_ms) == 0 for shard in range(world.shards))
