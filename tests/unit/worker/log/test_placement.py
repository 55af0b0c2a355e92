"""Who should lead and follow what. Hosts that act by it are in ``tests/property/test_leadership.py``."""

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fila_worker.log.bodies import HostState
from fila_worker.log.placement import (
    HostView,
    HostViews,
    Placement,
    PlacementLimits,
    leaders,
    line_of,
    plan_copies,
    plan_leaders,
)

LIMITS = PlacementLimits()


def host(name: str, leads: list[int] | None = None, follows: dict[int, int] | None = None, **more: int) -> HostView:
    led = dict.fromkeys(leads or [], 100)
    return HostView(name, led, {**dict.fromkeys(led, 0), **(follows or {})}, **more)  # type: ignore[arg-type]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[HostView], range]:
    """Hosts that lead and follow anything; several may think that they lead the same shard."""
    random = Random(draw(st.integers(0, 2**32)))
    shards = range(random.randint(0, 12))
    views = []
    for number in range(random.randint(1, 6)):
        leads = {shard: random.randint(0, 9) for shard in shards if random.random() < 0.3}
        follows = {shard: random.choice([0, 5, 1000]) for shard in shards if random.random() < 0.6}
        age = random.choice([0, 0, 0, 0, 100, 5000, 700_000])
        views.append(HostView(f"host-{number}", leads, {**follows, **dict.fromkeys(leads, 0)}, random.random() < 0.15, age))
    return views, shards


@given(clusters(), st.randoms())
def test_a_plan_is_even_moves_little_and_is_the_same_for_all(case: tuple[list[HostView], range], random: Random) -> None:
    views, shards = case
    plan = plan_leaders(views, shards, LIMITS)
    takers = [view.host for view in views if view.age_ms <= LIMITS.live_ms and not view.drains]
    if not takers:
        assert plan == {}
        return
    led = Counter(plan.values())
    assert sorted(plan) == list(shards)
    assert {*plan.values()} <= {*takers}
    assert max(led[name] for name in takers) - min(led[name] for name in takers) <= 1
    now = {shard: name for shard, name in leaders(views, LIMITS).items() if name in takers}
    counts = Counter(now.values())
    moved = sum(plan[shard] != name for shard, name in now.items())
    most = sorted((counts[name] for name in takers), reverse=True)
    least, more = divmod(len(shards), len(takers))
    assert moved == sum(max(count - least - (place < more), 0) for place, count in enumerate(most)), "needless moves"
    shuffled = random.sample(views, len(views))
    assert plan_leaders(shuffled, shards, LIMITS) == plan
    assert plan_copies(shuffled, shards, plan, LIMITS) == plan_copies(views, shards, plan, LIMITS)


@given(clusters())
def test_each_shard_has_its_copies_and_none_goes_too_early(case: tuple[list[HostView], range]) -> None:
    views, shards = case
    copies = plan_copies(views, shards, plan_leaders(views, shards, LIMITS), LIMITS)
    members = {view.host: view for view in views if view.age_ms <= LIMITS.gone_ms}
    stay = [name for name, view in members.items() if not view.drains]
    for shard in shards:
        assert copies[shard] <= {*members}
        assert len(copies[shard] & {*stay}) >= min(LIMITS.standbys + 1, len(stay))
        ready = {name for name, view in members.items() if view.behind(shard, LIMITS) == 0}
        assert len(copies[shard] & ready) >= min(LIMITS.standbys + 1, len(ready)), "the last good copies are dropped"


def test_a_host_that_comes_back_gets_its_share_and_no_more() -> None:
    views = [host("a", [0, 1, 2, 3]), host("b", [4, 5, 6, 7]), host("c", follows=dict.fromkeys(range(8), 0))]
    plan = plan_leaders(views, range(8), LIMITS)
    assert Counter(plan.values()) == {"a": 3, "b": 3, "c": 2}


def test_an_even_cluster_stays_as_it_is() -> None:
    views = [host("a", [0, 5]), host("b", [1, 2, 3]), host("c", [4, 6, 7])]
    views = [replace(view, follows=dict.fromkeys(range(8), 0)) for view in views]
    assert plan_leaders(views, range(8), LIMITS) == leaders(views, LIMITS)


def test_a_copy_that_has_caught_up_is_preferred() -> None:
    views = [
        host("a", [0, 1, 2, 3]),
        host("b", follows={0: 500, 1: 500, 2: 0, 3: 500}),
        host("c", follows={3: 0}),
        host("d", follows={0: 500}),
    ]
    plan = plan_leaders(views, range(4), LIMITS)
    assert (plan[2], plan[3], plan[0]) == ("b", "c", "d")


def test_the_line_has_the_planned_host_first_and_laggards_and_drainers_last() -> None:
    views = [
        host("a", [0], age_ms=5000),
        host("b", [1], {0: 0}),
        host("c", follows={0: 0}),
        host("d", follows={0: 900}),
        host("e", follows={0: 0}, drains=True),
        host("f", follows={0: 0}, age_ms=5000),
        host("g"),
    ]
    assert line_of(0, views, {0: "b"}, LIMITS) == ["b", "c", "d", "e"]
    assert line_of(0, views, {0: "d"}, LIMITS) == ["c", "b", "d", "e"]
    assert line_of(1, views, {}, LIMITS) == []


def test_the_highest_epoch_leads() -> None:
    views = [HostView("a", {0: 7}), HostView("b", {0: 12}), HostView("c", {0: 20}, age_ms=5000)]
    assert leaders(views, LIMITS) == {0: "b"}


def test_a_host_that_is_away_keeps_its_copies_for_a_while() -> None:
    views = [host("a", [0]), host("b", follows={0: 0}, age_ms=500_000), host("c")]
    assert plan_copies(views, [0], {0: "a"}, LIMITS)[0] == {"a", "b"}
    gone = [views[0], replace(views[1], age_ms=600_001), views[2]]
    assert plan_copies(gone, [0], {0: "a"}, LIMITS)[0] == {"a", "c"}


@given(st.lists(st.sampled_from("abcd"), max_size=24))
def test_the_standbys_of_one_leader_are_on_different_hosts(leading: list[str]) -> None:
    views = [host(name, [shard for shard, by in enumerate(leading) if by == name]) for name in "abcd"]
    plan = leaders(views, LIMITS)
    copies = plan_copies(views, range(len(leading)), plan, LIMITS)
    for leader in "abcd":
        shared = Counter(name for shard, hosts in copies.items() if plan[shard] == leader for name in hosts)
        counts = [shared[name] for name in "abcd" if name != leader]
        assert max(counts) - min(counts) <= 1


def test_a_draining_host_keeps_its_copy_until_others_have_caught_up() -> None:
    drains = host("a", [0], drains=True)
    assert plan_copies([drains, host("b", follows={0: 0}), host("c")], [0], {0: "b"}, LIMITS)[0] == {"a", "b", "c"}
    ready = [drains, host("b", follows={0: 0}), host("c", follows={0: 3})]
    assert plan_copies(ready, [0], {0: "b"}, LIMITS)[0] == {"b", "c"}


# --- one host over time -----------------------------------------------------------------------------------------------


def decide(placement: Placement, views: list[HostView], since_ms: int, until_ms: int) -> list[int | None]:
    return [placement.step(views, now_ms).wish for now_ms in range(since_ms, until_ms, 1000)]


def uneven() -> list[HostView]:
    return [host("a", [0, 1, 2, 3]), host("b", follows=dict.fromkeys(range(4), 0))]


def test_a_wish_needs_a_plan_that_has_settled_and_is_the_only_one() -> None:
    wishes = decide(Placement("b", range(4), 0), uneven(), 0, 30_000)
    assert wishes[:10] == [None] * 10
    assert None not in wishes[10:]
    planned = {shard for shard, name in plan_leaders(uneven(), range(4), LIMITS).items() if name == "b"}
    assert {*wishes[10:]} == planned
    assert all(wishes[at : at + 5] == [wishes[at]] * 5 for at in (10, 15, 20))


def test_a_plan_that_changes_starts_anew() -> None:
    placement = Placement("b", range(4), 0)
    decide(placement, uneven(), 0, 9000)
    decide(placement, [uneven()[1]], 9000, 10_000)  # the other one seems to be away
    assert decide(placement, uneven(), 10_000, 19_000) == [None] * 9


def test_nothing_is_asked_of_a_host_that_does_not_speak_or_for_a_copy_that_is_behind() -> None:
    silent = [replace(uneven()[0], age_ms=5000), uneven()[1]]
    assert {*decide(Placement("b", range(4), 0), silent, 0, 30_000)} == {None}
    behind = [uneven()[0], host("b", follows=dict.fromkeys(range(4), 201))]
    assert {*decide(Placement("b", range(4), 0), behind, 0, 30_000)} == {None}


def test_a_host_that_drains_is_asked_at_once() -> None:
    drains = [replace(uneven()[0], drains=True), uneven()[1]]
    assert decide(Placement("b", range(4), 0), drains, 0, 1000) != [None]


def test_a_host_gives_one_shard_at_a_time_and_only_if_its_own_plan_says_so() -> None:
    placement = Placement("a", range(4), 0)
    placement.step(uneven(), 0)
    given = [shard for shard, name in plan_leaders(uneven(), range(4), LIMITS).items() if name == "b"]
    kept = next(shard for shard in range(4) if shard not in given)
    assert not placement.may_give(kept, "b", 0)
    assert not placement.may_give(given[0], "c", 0)
    assert placement.may_give(given[0], "b", 0)
    assert not placement.may_give(given[1], "b", 1999)
    assert placement.may_give(given[1], "b", 2000)


def test_a_new_process_listens_before_it_begins_copies() -> None:
    placement = Placement("b", range(4), 0)
    assert placement.step([host("b", follows={2: 9})], 2999).follow == {2}
    assert placement.step([host("b", follows={2: 9})], 3000).follow == {0, 1, 2, 3}


def test_a_copy_that_is_not_needed_is_kept_for_a_while() -> None:
    views = [host("a", [0]), host("b", follows={0: 0}), host("c", follows={0: 0})]
    needed = plan_copies(views, [0], {0: "a"}, LIMITS)[0]
    (spare,) = {"a", "b", "c"} - needed
    placement = Placement(spare, [0], 0)
    assert placement.step(views, 5000).follow == {0}
    assert placement.step(views, 64_999).follow == {0}
    assert placement.step(views, 65_000).follow == frozenset()


def test_shards_are_left_to_copies_that_have_caught_up_and_evenly() -> None:
    views = [host("a", [0, 1]), host("b", follows={0: 0, 1: 0}), host("c", follows={0: 0, 1: 0})]
    assert {*Placement("a", range(2), 0).successors(views).values()} == {"b", "c"}
    behind = [views[0], host("b", follows={0: 0}), host("c", follows={1: 999})]
    assert Placement("a", range(2), 0).successors(behind) == {0: "b", 1: ""}


def test_what_hosts_have_said_has_an_age_and_is_forgotten() -> None:
    views = HostViews(hosts_max=2)
    for number, now_ms in enumerate((0, 10, 20)):
        views.read(HostState(f"host-{number}", "", {1: 2}, {1: 0}, True), now_ms)
    assert views.views(30, 100) == [
        HostView("host-1", {1: 2}, {1: 0}, True, 20),
        HostView("host-2", {1: 2}, {1: 0}, True, 10),
    ]
    assert [view.host for view in views.views(111, 100)] == ["host-2"]
