"""Which host should lead what, and who is next. Hosts that act by it are in ``tests/property/replication/test_leadership.py``."""

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fila_worker.log.placement import PlacementLimits
from fila_worker.log.placement.plan import leaders, line_up, plan_leaders
from fila_worker.log.placement.views import NodeView
from tests.unit.worker.log.placement.views import everything, node

LIMITS = PlacementLimits()
SEEDS = st.integers(0, 2**32)


def any_cluster(seed: int) -> tuple[list[NodeView], range]:
    """Nodes that lead and follow anything; several may think that they lead the same shard."""
    random = Random(seed)
    shards = range(random.randint(0, 12))
    views = []
    for number in range(random.randint(1, 6)):
        leads = {shard: random.randint(0, 9) for shard in shards if random.random() < 0.3}
        follows = {shard: random.choice([0, 5, 1000]) for shard in shards if random.random() < 0.6}
        host = f"host-{number // random.choice([1, 1, 2])}"
        views.append(NodeView(f"node-{number}", host, leads, {**follows, **dict.fromkeys(leads, 0)}, random.random() < 0.15))
    return views, shards


def whole_cluster(seed: int) -> tuple[list[NodeView], range, int]:
    """Hosts with as many nodes each, which all have copies of the same shards, and any leaders; the number of nodes of each host."""
    random = Random(seed)
    hosts, nodes, shards = random.randint(1, 5), random.randint(1, 3), range(random.randint(0, 20))
    now = {shard: random.randint(-1, hosts - 1) for shard in shards}
    if random.random() < 0.5:
        now = dict.fromkeys(shards, random.randint(-1, 0))
    views = []
    for host in range(hosts):
        for number in range(nodes):
            mine = [shard for shard in shards if shard % nodes == number]
            led = [shard for shard in mine if now[shard] == host]
            drains = random.random() < 0.05
            views.append(node(f"{host}/{number}", led, dict.fromkeys(mine, 0), host=f"host-{host}", drains=drains))
    return views, shards, nodes


def led_by(views: list[NodeView], plan: dict[int, str]) -> list[NodeView]:
    """The views when the plan is carried out."""
    return [
        replace(view, leads={shard: 100 for shard, host in plan.items() if host == view.host and shard in view.follows})
        for view in views
    ]


@given(SEEDS, st.randoms())
def test_a_plan_is_for_those_who_can_and_the_same_for_all(seed: int, random: Random) -> None:
    views, shards = any_cluster(seed)
    plan = plan_leaders(views, shards, LIMITS)
    for shard in shards:
        able = {view.host for view in views if shard in view.follows and not view.drains}
        assert plan.get(shard) in able or (not able and shard not in plan)
    shuffled = sorted(random.sample(views, len(views)), key=lambda view: view.name)
    assert plan_leaders(shuffled, shards, LIMITS) == plan
    lines = line_up(shuffled, shards, plan, LIMITS)
    assert lines == line_up(views, shards, plan, LIMITS)
    assert all(leaders(views).get(shard) not in line for shard, line in lines.items())


@given(SEEDS)
def test_a_plan_is_even_among_hosts_and_among_their_nodes(seed: int) -> None:
    views, shards, nodes = whole_cluster(seed)
    plan = plan_leaders(views, shards, LIMITS)
    if any(view.drains for view in views):
        return
    hosts = {view.host for view in views}
    totals = Counter(plan.values())
    assert max(totals[host] for host in hosts) - min(totals[host] for host in hosts) <= 1
    for number in range(nodes):
        counts = Counter(plan[shard] for shard in shards if shard % nodes == number)
        assert max(counts[host] for host in hosts) - min(counts[host] for host in hosts) <= 1


@given(SEEDS, st.randoms())
def test_a_plan_that_is_carried_out_in_any_order_is_done(seed: int, random: Random) -> None:
    views, shards, nodes = whole_cluster(seed)
    now = leaders(views)
    plan = plan_leaders(views, shards, LIMITS)
    moves, moved = 0, {shard: host for shard, host in now.items() if host in {view.host for view in views}}
    while todo := [shard for shard in plan if moved.get(shard) != plan[shard]]:
        shard = random.choice(todo)
        moved[shard] = plan[shard]
        moves += 1
        plan = plan_leaders(led_by(views, moved), shards, LIMITS)
        assert moves <= 2 * len(shards), "it comes to no end"
    assert plan_leaders(led_by(views, plan), shards, LIMITS) == plan
    if nodes == 1 and not any(view.drains for view in views):
        counts = sorted((Counter(now.values())[view.host] for view in views), reverse=True)
        least, more = divmod(len(shards), len(views))
        needed = sum(max(count - least - (place < more), 0) for place, count in enumerate(counts))
        assert moves == needed + len(shards) - len(now), "needless moves"


def test_hosts_that_start_together_agree_while_the_first_ones_lead_already() -> None:
    views = [node(name, follows=everything(7)) for name in "abc"]
    plan = plan_leaders(views, range(7), LIMITS)
    assert sorted(Counter(plan.values()).values()) == [2, 2, 3]
    for shard, host in plan.items():
        assert plan_leaders(led_by(views, {shard: host}), range(7), LIMITS) == plan


def test_a_host_that_comes_back_gets_its_share_and_no_more() -> None:
    views = [node("a", [0, 1, 2, 3]), node("b", [4, 5, 6, 7]), node("c")]
    views = [replace(view, follows=everything(8)) for view in views]
    assert Counter(plan_leaders(views, range(8), LIMITS).values()) == {"a": 3, "b": 3, "c": 2}


def test_a_copy_that_has_caught_up_is_preferred() -> None:
    views = [
        node("a", [0, 1, 2]),
        node("b", follows={0: 500, 1: 500, 2: 0}),
        node("c", follows={0: 500, 1: 0, 2: 500}),
    ]
    assert plan_leaders(views, range(3), LIMITS) == {0: "a", 1: "c", 2: "b"}


def test_a_node_that_drains_loses_its_shards_and_no_other_of_its_host_does() -> None:
    even, odd = {0: 0, 2: 0}, {1: 0, 3: 0}
    views = [node("a/0", [0], even, host="a", drains=True), node("a/1", [1], odd, host="a"), node("b/0", [2], even, host="b")]
    plan = plan_leaders([*views, node("b/1", [3], odd, host="b")], range(4), LIMITS)
    assert plan == {0: "b", 1: "a", 2: "b", 3: "b"}
    assert plan_leaders(views[:1], range(4), LIMITS) == {}


def test_the_line_has_the_planned_host_first_and_laggards_and_drainers_last() -> None:
    views = [
        node("a", [0]),
        node("b", [1], {0: 0}),
        node("c", follows={0: 0}),
        node("d", follows={0: 900}),
        node("e", follows={0: 0}, drains=True),
        node("g"),
    ]
    assert line_up(views, [0], {0: "b"}, LIMITS) == {0: ["b", "c", "d", "e"]}
    assert line_up(views, [0], {0: "d"}, LIMITS) == {0: ["c", "b", "d", "e"]}
    assert line_up(views, [1], {}, LIMITS) == {1: []}


def test_the_highest_epoch_leads() -> None:
    views = [NodeView("a", "a", {0: 7}), NodeView("b", "b", {0: 12}), NodeView("c", "c", {0: 9})]
    assert leaders(views) == {0: "b"}
