"""What a node says and hears in the control partition, and what it does while that does not answer."""

from fila_worker.log.bodies import Node, NodeState, decode_body, encode_body
from fila_worker.log.placement import PlacementLimits
from fila_worker.log.placement.control import ControlPartition
from tests.support.memory_log import MemoryLog, MemoryPartition

LIMITS = PlacementLimits(keep_records=10)


class ControlCluster:
    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.log = MemoryLog()
        self.nodes = {name: Listener(self, name) for name in "ab"}

    def pass_ms(self, span_ms: int, *names: str, step_ms: int = 200) -> None:
        """Let time pass for some of the nodes; for all, if none is named."""
        for _ in range(span_ms // step_ms):
            self.now_ms += step_ms
            for name in names or self.nodes:
                self.nodes[name].step()

    @property
    def said(self) -> list[str]:
        """The nodes that have said something, in order."""
        states = [decode_body(entry.data, NodeState) for entry in self.log.entries]
        return [state.node.name for state in states if state is not None]


class Listener:
    """A node that follows shard 0."""

    def __init__(self, cluster: ControlCluster, name: str, life: str = "") -> None:
        self.cluster = cluster
        self.state = NodeState(Node(name, f"host-{name}", life=life), {}, {0: 5})
        self.partition = MemoryPartition(cluster.log, lambda: cluster.now_ms)
        self.control = ControlPartition(self.partition, cluster.now_ms, LIMITS, self.state.node)

    def step(self) -> None:
        self.control.append(self.state, self.cluster.now_ms)
        self.control.read(self.cluster.now_ms)

    @property
    def knows(self) -> bool:
        return self.control.is_complete(self.cluster.now_ms)

    @property
    def heard(self) -> list[str]:
        return [view.name for view in self.control.views(self.state, self.cluster.now_ms)]


def test_each_node_says_once_a_second_what_it_has_and_hears_the_others() -> None:
    cluster = ControlCluster()
    cluster.pass_ms(3000)
    assert sorted(cluster.said) == ["a"] * 3 + ["b"] * 3
    assert [cluster.nodes[name].heard for name in "ab"] == [["a", "b"], ["b", "a"]]
    (other,) = (
        view for view in cluster.nodes["a"].control.views(cluster.nodes["a"].state, cluster.now_ms) if view.name == "b"
    )
    assert (other.host, other.follows, other.drains) == ("host-b", {0: 5}, False)


def test_what_has_changed_is_said_at_once_but_not_each_delay() -> None:
    cluster = ControlCluster()
    cluster.pass_ms(600, "a")
    before = len(cluster.said)
    cluster.nodes["a"].state = NodeState(Node("a", "host-a"), {}, {0: 0})
    cluster.pass_ms(200, "a")
    assert len(cluster.said) == before
    cluster.nodes["a"].state = NodeState(Node("a", "host-a"), {0: 7})
    cluster.pass_ms(200, "a")
    cluster.nodes["a"].state = NodeState(Node("a", "host-a"), {0: 7}, {}, True)
    cluster.pass_ms(200, "a")
    assert len(cluster.said) == before + 2


def test_a_node_knows_when_it_has_listened_for_long_enough() -> None:
    cluster = ControlCluster()
    cluster.pass_ms(2000)
    assert not cluster.nodes["a"].knows
    cluster.pass_ms(400)
    assert cluster.nodes["a"].knows


def test_what_was_said_before_a_node_listens_is_not_heard() -> None:
    cluster = ControlCluster()
    cluster.log.put(encode_body(NodeState(Node("dead", "host-dead"), {0: 9})))
    cluster.pass_ms(3000)
    assert cluster.nodes["a"].heard == ["a", "b"]


def test_a_node_that_falls_silent_is_forgotten() -> None:
    cluster = ControlCluster()
    cluster.pass_ms(3000)
    cluster.pass_ms(3000, "a")
    assert cluster.nodes["a"].heard == ["a", "b"]
    cluster.pass_ms(1000, "a")
    assert cluster.nodes["a"].heard == ["a"]


def test_a_partition_that_does_not_answer_is_noticed_before_the_others_seem_dead() -> None:
    cluster = ControlCluster()
    cluster.pass_ms(3000)
    cluster.log.reachable = False
    cluster.pass_ms(3400)
    assert not cluster.nodes["a"].knows
    assert cluster.nodes["a"].heard == ["a", "b"]
    cluster.pass_ms(60_000)
    assert cluster.nodes["a"].partition.appenders[-1].on_the_way == 1, "what it says is bounded"
    cluster.log.reachable = True
    cluster.pass_ms(1000)
    assert not cluster.nodes["a"].knows, "it listens first"
    cluster.pass_ms(2000)
    assert cluster.nodes["a"].knows
    assert cluster.nodes["a"].heard == ["a", "b"]


def test_a_node_that_can_not_speak_goes_on_with_a_new_appender() -> None:
    cluster = ControlCluster()
    cluster.pass_ms(1000, "a")
    cluster.nodes["a"].partition.held = True
    cluster.pass_ms(1000, "a")
    cluster.nodes["a"].partition.appenders[-1].fail("timed out")
    cluster.nodes["a"].partition.held = False
    before = len(cluster.said)
    cluster.pass_ms(2000, "a")
    assert len(cluster.said) >= before + 2


def test_a_node_that_did_not_run_listens_anew() -> None:
    cluster = ControlCluster()
    cluster.pass_ms(3000)
    cluster.pass_ms(3000, "b")
    cluster.nodes["b"].control.close()
    cluster.now_ms += 5000
    cluster.nodes["a"].step()
    assert not cluster.nodes["a"].knows
    cluster.pass_ms(3000, "a")
    assert cluster.nodes["a"].knows
    assert cluster.nodes["a"].heard == ["a"], "what waited for it is old"


def test_a_log_that_was_trimmed_or_has_gone_back_is_read_from_its_end() -> None:
    cluster = ControlCluster()
    cluster.pass_ms(3000)
    cluster.pass_ms(2000, "b", step_ms=1000)
    cluster.log.trim(cluster.log.end)
    cluster.pass_ms(3000)
    assert cluster.nodes["a"].heard == ["a", "b"]
    cluster.log.cut(cluster.log.begin)
    cluster.pass_ms(3000)
    assert cluster.nodes["a"].knows
    assert cluster.nodes["a"].heard == ["a", "b"]


def test_what_can_not_be_read_says_nothing() -> None:
    cluster = ControlCluster()
    cluster.pass_ms(3000)
    for data in (b"", b"\x01", b"\x07what", encode_body(NodeState()), b"x" * 1000):
        cluster.log.put(data)
    cluster.pass_ms(1000)
    assert cluster.nodes["a"].heard == ["a", "b"]


def test_what_no_reader_needs_is_forgotten() -> None:
    cluster = ControlCluster()
    cluster.pass_ms(70_000)
    assert cluster.log.begin == 0
    cluster.nodes["a"].control.trim(cluster.now_ms)
    assert cluster.log.end - cluster.log.begin == 10
    cluster.pass_ms(30_000)
    cluster.nodes["a"].control.trim(cluster.now_ms)
    assert cluster.log.end - cluster.log.begin > 10, "not all the time"


def test_nodes_in_any_number_are_bounded() -> None:
    limits = PlacementLimits(nodes_max=3)
    cluster = ControlCluster()
    control = ControlPartition(MemoryPartition(cluster.log, lambda: cluster.now_ms), cluster.now_ms, limits, Node("a"))
    for _ in range(2):
        control.read(cluster.now_ms)
    for number in range(10):
        cluster.log.put(encode_body(NodeState(Node(f"n{number}"))))
    control.read(cluster.now_ms)
    assert [view.name for view in control.views(NodeState(Node("a")), cluster.now_ms)] == ["a", "n7", "n8", "n9"]


def test_of_two_with_one_name_the_later_one_learns_of_it() -> None:
    cluster = ControlCluster()
    cluster.pass_ms(3000)
    late = cluster.nodes["late"] = Listener(cluster, "a", life="another")
    cluster.pass_ms(2400)
    assert late.control.twin == Node("a", "host-a")
    assert cluster.nodes["a"].control.twin is None


def test_the_last_word_of_the_former_life_is_no_twin() -> None:
    cluster = ControlCluster()
    again = cluster.nodes["again"] = Listener(cluster, "b", life="another")
    cluster.pass_ms(400, "again")
    cluster.log.put(encode_body(cluster.nodes["b"].state))
    cluster.pass_ms(4000, "again", "a")
    assert again.control.twin is None


def test_who_has_its_name_keeps_it_when_the_partition_was_away() -> None:
    cluster = ControlCluster()
    cluster.pass_ms(3000)
    late = cluster.nodes["late"] = Listener(cluster, "a", life="another")
    cluster.pass_ms(10_000, step_ms=5000)  # all of them were paused
    cluster.pass_ms(3000)
    assert cluster.nodes["a"].control.twin is None
    assert late.control.twin is not None
