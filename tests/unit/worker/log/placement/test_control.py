"""What a node says and hears in the control partition, and what it does while that does not answer."""

from fila_worker.log.bodies import Node, NodeState, decode_body, encode_body
from fila_worker.log.placement import PlacementLimits
from fila_worker.log.placement.control import ControlPartition
from tests.support.memory_log import MemoryLog, MemoryPartition

LIMITS = PlacementLimits(keep_records=10)


class Town:
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

    def __init__(self, town: Town, name: str, life: str = "") -> None:
        self.town = town
        self.state = NodeState(Node(name, f"host-{name}", life=life), {}, {0: 5})
        self.partition = MemoryPartition(town.log, lambda: town.now_ms)
        self.control = ControlPartition(self.partition, town.now_ms, LIMITS, self.state.node)

    def step(self) -> None:
        self.control.append(self.state, self.town.now_ms)
        self.control.read(self.town.now_ms)

    @property
    def knows(self) -> bool:
        return self.control.is_complete(self.town.now_ms)

    @property
    def heard(self) -> list[str]:
        return [view.name for view in self.control.views(self.state, self.town.now_ms)]


def test_each_node_says_once_a_second_what_it_has_and_hears_the_others() -> None:
    town = Town()
    town.pass_ms(3000)
    assert sorted(town.said) == ["a"] * 3 + ["b"] * 3
    assert [town.nodes[name].heard for name in "ab"] == [["a", "b"], ["b", "a"]]
    (other,) = (view for view in town.nodes["a"].control.views(town.nodes["a"].state, town.now_ms) if view.name == "b")
    assert (other.host, other.follows, other.drains) == ("host-b", {0: 5}, False)


def test_what_has_changed_is_said_at_once_but_not_each_delay() -> None:
    town = Town()
    town.pass_ms(600, "a")
    before = len(town.said)
    town.nodes["a"].state = NodeState(Node("a", "host-a"), {}, {0: 0})
    town.pass_ms(200, "a")
    assert len(town.said) == before
    town.nodes["a"].state = NodeState(Node("a", "host-a"), {0: 7})
    town.pass_ms(200, "a")
    town.nodes["a"].state = NodeState(Node("a", "host-a"), {0: 7}, {}, True)
    town.pass_ms(200, "a")
    assert len(town.said) == before + 2


def test_a_node_knows_when_it_has_listened_for_long_enough() -> None:
    town = Town()
    town.pass_ms(2000)
    assert not town.nodes["a"].knows
    town.pass_ms(400)
    assert town.nodes["a"].knows


def test_what_was_said_before_a_node_listens_is_not_heard() -> None:
    town = Town()
    town.log.put(encode_body(NodeState(Node("dead", "host-dead"), {0: 9})))
    town.pass_ms(3000)
    assert town.nodes["a"].heard == ["a", "b"]


def test_a_node_that_falls_silent_is_forgotten() -> None:
    town = Town()
    town.pass_ms(3000)
    town.pass_ms(3000, "a")
    assert town.nodes["a"].heard == ["a", "b"]
    town.pass_ms(1000, "a")
    assert town.nodes["a"].heard == ["a"]


def test_a_partition_that_does_not_answer_is_noticed_before_the_others_seem_dead() -> None:
    town = Town()
    town.pass_ms(3000)
    town.log.reachable = False
    town.pass_ms(3400)
    assert not town.nodes["a"].knows
    assert town.nodes["a"].heard == ["a", "b"]
    town.pass_ms(60_000)
    assert town.nodes["a"].partition.appenders[-1].on_the_way == 1, "what it says is bounded"
    town.log.reachable = True
    town.pass_ms(1000)
    assert not town.nodes["a"].knows, "it listens first"
    town.pass_ms(2000)
    assert town.nodes["a"].knows
    assert town.nodes["a"].heard == ["a", "b"]


def test_a_node_that_can_not_speak_goes_on_with_a_new_appender() -> None:
    town = Town()
    town.pass_ms(1000, "a")
    town.nodes["a"].partition.held = True
    town.pass_ms(1000, "a")
    town.nodes["a"].partition.appenders[-1].fail("timed out")
    town.nodes["a"].partition.held = False
    before = len(town.said)
    town.pass_ms(2000, "a")
    assert len(town.said) >= before + 2


def test_a_node_that_did_not_run_listens_anew() -> None:
    town = Town()
    town.pass_ms(3000)
    town.pass_ms(3000, "b")
    town.nodes["b"].control.close()
    town.now_ms += 5000
    town.nodes["a"].step()
    assert not town.nodes["a"].knows
    town.pass_ms(3000, "a")
    assert town.nodes["a"].knows
    assert town.nodes["a"].heard == ["a"], "what waited for it is old"


def test_a_log_that_was_trimmed_or_has_gone_back_is_read_from_its_end() -> None:
    town = Town()
    town.pass_ms(3000)
    town.pass_ms(2000, "b", step_ms=1000)
    town.log.trim(town.log.end)
    town.pass_ms(3000)
    assert town.nodes["a"].heard == ["a", "b"]
    town.log.cut(town.log.begin)
    town.pass_ms(3000)
    assert town.nodes["a"].knows
    assert town.nodes["a"].heard == ["a", "b"]


def test_what_can_not_be_read_says_nothing() -> None:
    town = Town()
    town.pass_ms(3000)
    for data in (b"", b"\x01", b"\x07what", encode_body(NodeState()), b"x" * 1000):
        town.log.put(data)
    town.pass_ms(1000)
    assert town.nodes["a"].heard == ["a", "b"]


def test_what_no_reader_needs_is_forgotten() -> None:
    town = Town()
    town.pass_ms(70_000)
    assert town.log.begin == 0
    town.nodes["a"].control.trim(town.now_ms)
    assert town.log.end - town.log.begin == 10
    town.pass_ms(30_000)
    town.nodes["a"].control.trim(town.now_ms)
    assert town.log.end - town.log.begin > 10, "not all the time"


def test_nodes_in_any_number_are_bounded() -> None:
    limits = PlacementLimits(nodes_max=3)
    town = Town()
    control = ControlPartition(MemoryPartition(town.log, lambda: town.now_ms), town.now_ms, limits, Node("a"))
    for _ in range(2):
        control.read(town.now_ms)
    for number in range(10):
        town.log.put(encode_body(NodeState(Node(f"n{number}"))))
    control.read(town.now_ms)
    assert [view.name for view in control.views(NodeState(Node("a")), town.now_ms)] == ["a", "n7", "n8", "n9"]


def test_of_two_with_one_name_the_later_one_learns_of_it() -> None:
    town = Town()
    town.pass_ms(3000)
    late = town.nodes["late"] = Listener(town, "a", life="another")
    town.pass_ms(2400)
    assert late.control.twin == Node("a", "host-a")
    assert town.nodes["a"].control.twin is None


def test_the_last_word_of_the_former_life_is_no_twin() -> None:
    town = Town()
    again = town.nodes["again"] = Listener(town, "b", life="another")
    town.pass_ms(400, "again")
    town.log.put(encode_body(town.nodes["b"].state))
    town.pass_ms(4000, "again", "a")
    assert again.control.twin is None


def test_who_has_its_name_keeps_it_when_the_partition_was_away() -> None:
    town = Town()
    town.pass_ms(3000)
    late = town.nodes["late"] = Listener(town, "a", life="another")
    town.pass_ms(10_000, step_ms=5000)  # all of them were paused
    town.pass_ms(3000)
    assert town.nodes["a"].control.twin is None
    assert late.control.twin is not None
