"""One node among others: its copies get their places, and shards are asked for, given and left."""

from fila_worker.log.bodies import Node, NodeState, decode_body, encode_body
from fila_worker.log.leadership import Leadership, LeadershipState
from fila_worker.log.placement import PlacementLimits, Placing
from tests.support.memory_log import MemoryLog, MemoryPartition

LIMITS = PlacementLimits(settle_ms=3000)


class Copy:
    """A copy that leads if it is told so."""

    def __init__(self, now_ms: int) -> None:
        self.leadership = Leadership(Node("a", "a"), now_ms)
        self.may_give = lambda host, now_ms: True
        self.behind: int | None = 0

    def lead(self) -> None:
        self.leadership.state, self.leadership.epoch, self.leadership.serves = LeadershipState.LEADS, 7, True

    def step(self, now_ms: int) -> None:
        self.leadership.step(now_ms)


class Stand:
    """The node of host a with copies of shards 0 to 3, and another one, b, that says what the test tells."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.log = MemoryLog()
        self.copies = {shard: Copy(self.now_ms) for shard in range(4)}
        partition = MemoryPartition(self.log, lambda: self.now_ms)
        self.placing = Placing(Node("a", "a"), 4, lambda: self.copies, partition, self.now_ms, LIMITS)
        for shard, copy in self.copies.items():
            self.placing.join(shard, copy)
        self.other = NodeState(Node("b", "b"), {}, dict.fromkeys(range(4), 0))

    def pass_ms(self, span_ms: int) -> None:
        for _ in range(span_ms // 100):
            self.now_ms += 100
            if self.now_ms % 1000 == 0:
                self.log.put(encode_body(self.other))
            self.placing.step(self.now_ms)

    @property
    def ranks(self) -> list[int]:
        return [copy.leadership.rank for copy in self.copies.values()]

    @property
    def wants(self) -> list[int]:
        return [shard for shard, copy in self.copies.items() if copy.leadership.wants]

    @property
    def leaving(self) -> list[int]:
        """The shards that it gives up."""
        for copy in self.copies.values():
            copy.step(self.now_ms)
        return [shard for shard, copy in self.copies.items() if copy.leadership.state is LeadershipState.LEAVES]


def test_a_new_copy_is_one_of_the_last_in_line_until_the_others_were_heard() -> None:
    stand = Stand()
    assert min(stand.ranks) >= 6
    stand.pass_ms(2000)
    assert min(stand.ranks) >= 6
    stand.pass_ms(1000)
    assert sorted(stand.ranks) == [0, 0, 1, 1]


def test_a_copy_that_does_not_know_how_far_it_is_behind_has_not_caught_up() -> None:
    stand = Stand()
    stand.copies[1].lead()
    stand.copies[2].behind, stand.copies[3].behind = None, 7
    stand.placing.step(stand.now_ms)
    said = decode_body(stand.log.entries[0].data, NodeState)
    assert said is not None
    assert (said.node.name, said.leads, said.follows[0], said.follows[3]) == ("a", {1: 7}, 0, 7)
    assert said.follows[2] > LIMITS.behind_max


def test_routers_are_joined_as_soon_as_they_are_heard_and_kept_while_the_control_partition_is_lost() -> None:
    stand = Stand()
    stand.other = NodeState(Node("b", "b"), {}, dict.fromkeys(range(4), 0), router="tcp://b:5556")
    stand.pass_ms(900)
    assert stand.placing.routers == set()
    stand.pass_ms(400)
    assert stand.placing.routers == {"tcp://b:5556"}
    assert min(stand.ranks) >= 6, "it decides nothing yet"
    stand.pass_ms(3000)
    stand.log.reachable = False
    stand.pass_ms(10_000)
    assert stand.placing.routers == {"tcp://b:5556"}


def test_places_stay_and_nothing_is_asked_for_while_the_control_partition_is_lost() -> None:
    stand = Stand()
    stand.other = NodeState(Node("b", "b"), dict.fromkeys(range(4), 3))
    stand.pass_ms(7000)
    assert len(stand.wants) == 1
    ranks = stand.ranks
    stand.log.reachable = False
    stand.pass_ms(10_000)
    assert stand.wants == []
    assert stand.ranks == ranks


def test_a_shard_is_asked_for_when_the_plan_has_settled() -> None:
    stand = Stand()
    stand.other = NodeState(Node("b", "b"), dict.fromkeys(range(4), 3))
    stand.pass_ms(5000)
    assert stand.wants == []
    stand.pass_ms(2000)
    assert len(stand.wants) == 1


def test_a_shard_is_given_as_the_plan_says_and_one_at_a_time() -> None:
    stand = Stand()
    for copy in stand.copies.values():
        copy.lead()
    stand.pass_ms(4000)
    given = [shard for shard, copy in stand.copies.items() if copy.may_give("b", stand.now_ms)]
    assert len(given) == 1
    stand.copies[given[0]].leadership.leave("b", stand.now_ms)
    assert stand.leaving == given
    stand.pass_ms(5000)
    assert not any(copy.may_give("b", stand.now_ms) for shard, copy in stand.copies.items() if shard not in given)


def test_nothing_is_given_while_the_control_partition_is_lost() -> None:
    stand = Stand()
    for copy in stand.copies.values():
        copy.lead()
    stand.pass_ms(4000)
    stand.log.reachable = False
    stand.pass_ms(4000)
    assert not any(copy.may_give("b", stand.now_ms) for copy in stand.copies.values())
    stand.log.reachable = True
    stand.pass_ms(4000)
    assert any(copy.may_give("b", stand.now_ms) for copy in stand.copies.values())


def test_a_node_that_drains_leaves_one_shard_after_the_other_to_copies_that_have_caught_up() -> None:
    stand = Stand()
    for copy in stand.copies.values():
        copy.lead()
    stand.placing.drains = True
    stand.other = NodeState(Node("b", "b"), {}, {0: 10_000, 1: 0, 2: 0})
    stand.pass_ms(4000)
    (first,) = stand.leaving
    stand.pass_ms(3000)
    assert stand.leaving == [first], "it has no leader yet"
    stand.copies[first].leadership.state = LeadershipState.FOLLOWS
    stand.other = NodeState(Node("b", "b"), {first: 9}, {0: 10_000, **{shard: 0 for shard in (1, 2) if shard != first}})
    stand.pass_ms(3000)
    (second,) = stand.leaving
    assert {first, second} == {1, 2}
    stand.copies[second].leadership.state = LeadershipState.FOLLOWS
    stand.other = NodeState(Node("b", "b"), {1: 9, 2: 9}, {0: 10_000})
    stand.pass_ms(3000)
    assert stand.leaving == []


def test_a_node_that_is_apart_leaves_its_shards_when_the_others_had_time_to_say_that_they_are_too() -> None:
    stand = Stand()
    stand.copies[0].lead()
    stand.placing.apart = True
    stand.pass_ms(LIMITS.apart_ms - 100)
    assert stand.leaving == []
    stand.pass_ms(3000)
    assert stand.leaving == [0]


def test_a_node_that_is_apart_keeps_its_shards_if_all_others_are_or_drain() -> None:
    for other in (NodeState(Node("b", "b"), {}, {0: 0}, apart=True), NodeState(Node("b", "b"), {}, {0: 0}, drains=True)):
        stand = Stand()
        stand.copies[0].lead()
        stand.placing.apart, stand.other = True, other
        stand.pass_ms(10_000)
        assert stand.leaving == []


def test_a_node_that_ends_leaves_all_shards_at_once_and_says_so() -> None:
    stand = Stand()
    for shard in (0, 1):
        stand.copies[shard].lead()
    stand.pass_ms(4000)
    stand.placing.retire(stand.now_ms)
    assert stand.leaving == [0, 1]
    assert b"\xa6drains\xc3" in stand.log.entries[-1].data
