"""Hosts lead and follow shards by their logs alone, whatever happens to processes, clocks and the way to the log.

That nothing confirmed is lost or doubled is the rule's promise (``test_log_duels.py``). Here it is about who serves, when and where. The
same is checked in each run: effects that left a process are of turns that all replay, and no process takes a turn without proof that it leads.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.log_hosts import Host, World

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


@given(SEEDS, st.integers(2, 4), st.integers(1, 5))
@settings(max_examples=60)
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
