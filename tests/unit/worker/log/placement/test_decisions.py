"""One node over time: what it asks for, gives, and leaves to whom."""

from fila_worker.log.placement import PlacementLimits
from fila_worker.log.placement.plan import PlacementDecisions, plan_leaders
from fila_worker.log.placement.views import NodeView
from tests.unit.worker.log.placement.views import everything, node

LIMITS = PlacementLimits()


def placement(name: str, shards: int = 4) -> PlacementDecisions:
    return PlacementDecisions(name, name, range(shards), 0, LIMITS)


def wishes(placement: PlacementDecisions, views: list[NodeView], since_ms: int, until_ms: int) -> list[int | None]:
    return [placement.step(views, now_ms).request for now_ms in range(since_ms, until_ms, 1000)]


def uneven() -> list[NodeView]:
    return [node("a", [0, 1, 2, 3]), node("b", follows=everything(4))]


def planned(host: str) -> list[int]:
    return [shard for shard, name in plan_leaders(uneven(), range(4), LIMITS).items() if name == host]


def test_a_wish_needs_a_plan_that_has_settled_and_is_the_only_one() -> None:
    found = wishes(placement("b"), uneven(), 0, 30_000)
    assert found[:10] == [None] * 10
    assert None not in found[10:]
    assert {*found[10:]} == {*planned("b")}
    assert all(found[at : at + 5] == [found[at]] * 5 for at in (10, 15, 20))


def test_a_plan_that_changes_starts_anew() -> None:
    one = placement("b")
    wishes(one, uneven(), 0, 9000)
    wishes(one, [uneven()[1]], 9000, 10_000)  # the other one seems to be away
    assert wishes(one, uneven(), 10_000, 19_000) == [None] * 9


def test_nothing_is_asked_for_a_shard_without_a_leader_or_for_a_copy_that_is_behind() -> None:
    assert {*wishes(placement("b"), [node("a", follows=everything(4)), uneven()[1]], 0, 30_000)} == {None}
    behind = [uneven()[0], node("b", follows=dict.fromkeys(range(4), 201))]
    assert {*wishes(placement("b"), behind, 0, 30_000)} == {None}


def test_a_node_gives_only_what_its_own_plan_says() -> None:
    one = placement("a")
    one.step(uneven(), 0)
    assert not one.may_give(planned("a")[0], 0, "b")
    assert not one.may_give(planned("b")[0], 0, "c")
    assert one.may_give(planned("b")[0], 0, "b")


def test_a_node_gives_the_next_shard_when_the_last_one_has_a_leader_again() -> None:
    one = placement("a")
    one.step(uneven(), 0)
    first, second = planned("b")
    assert one.may_give(first, 0, "b")
    assert not one.may_give(second, 5000, "b"), "it is on its way"
    rest = [shard for shard in range(4) if shard != first]
    one.step([node("a", rest, {first: 0}), node("b", follows=everything(4))], 5000)
    assert not one.may_give(second, 5000, "b"), "it was not taken yet"
    one.step([node("a", rest, {first: 0}), node("b", [first], everything(4))], 6000)
    assert one.may_give(second, 6000, "b")


def test_a_node_waits_between_two_shards_that_it_gives() -> None:
    one = placement("a")
    one.step(uneven(), 0)
    first, second = planned("b")
    assert one.may_give(first, 0)
    rest = [shard for shard in range(4) if shard != first]
    one.step([node("a", rest, {first: 0}), node("b", [first], everything(4))], 500)
    assert not one.may_give(second, 999)
    assert one.may_give(second, 1000)


def test_shards_are_left_to_copies_that_have_caught_up_and_evenly() -> None:
    views = [node("a", [0, 1]), node("b", follows={0: 0, 1: 0}), node("c", follows={0: 0, 1: 0})]
    assert {*placement("a", 2).successors(views).values()} == {"b", "c"}
    behind = [views[0], node("b", follows={0: 0}), node("c", follows={1: 999})]
    assert placement("a", 2).successors(behind) == {0: "b", 1: ""}
    drains = [views[0], node("b", follows={0: 0, 1: 0}, drains=True), node("c", follows={0: 0})]
    assert placement("a", 2).successors(drains) == {0: "c", 1: ""}
    assert placement("a", 2).successors([]) == {}


def test_each_node_knows_its_places() -> None:
    views = [node("a", [0]), node("b", [1], {0: 0}), node("c", follows={0: 0, 1: 900})]
    assert placement("c", 2).step(views, 0).ranks == {0: 0, 1: 0}
    assert placement("b", 2).step(views, 0).ranks == {0: 1}
