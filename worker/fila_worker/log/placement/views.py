"""The last states of the nodes of a cluster."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from fila_worker.log.bodies import NodeState


@dataclass(frozen=True, slots=True)
class PlacementLimits:
    """Spans of time in milliseconds, and counts."""

    append_ms: int = 1000
    """How often a node appends its state, if nothing changes."""
    read_ms: int = 200
    """How often it looks for what others say."""
    live_ms: int = 4000
    """Plans leave out a node without a state for longer. Less than a leader's silence: then the line is known."""
    answer_ms_max: int = 2500
    """After longer without an answer, the partition shows nothing. Below ``live_ms``: else all others would seem dead."""
    learn_ms: int = 2000
    """How long to read before deciding anything: all live nodes have appended by then."""
    decide_ms: int = 1000
    """Between two decisions."""
    apart_ms: int = 2000
    """How long a node that is apart waits before it gives up its shards: others that are apart have reported by then."""
    settle_ms: int = 10_000
    """A transfer request needs a plan that is as old as that."""
    request_ms: int = 5000
    """How long a node has no other transfer request."""
    give_ms: int = 1000
    """Between two shards that a node gives away, at least. The first one must have a leader again, too."""
    behind_max: int = 200
    """Records: a copy that is further behind has not caught up."""
    nodes_max: int = 1000
    """Nodes that are remembered; those that were silent for longest are forgotten."""
    read_max: int = 1000
    """Records of the control partition that are read at once."""
    keep_records: int = 4096
    """Records that the control partition keeps. Readers begin at its end, so this is for slow ones."""
    trim_ms: int = 60_000
    """How often the rest is forgotten."""

    def __post_init__(self) -> None:
        assert self.read_ms <= self.append_ms < self.learn_ms, "all live nodes append while a node only reads"
        assert self.append_ms < self.answer_ms_max < self.live_ms, "silence of the partition is noticed before that of nodes"
        assert self.append_ms < self.apart_ms, "two nodes that are apart from each other have both reported it"


@dataclass(frozen=True, slots=True)
class NodeView:
    """The last state of a live node."""

    name: str
    host: str
    leads: Mapping[int, int] = field(default_factory=dict)
    """Shards with the epoch."""
    follows: Mapping[int, int] = field(default_factory=dict)
    """All shards that it has a copy of, with the number of records that the copy is behind."""
    drains: bool = False
    router: str = ""
    """The endpoint of its host's router for workers."""
    apart: bool = False
    """Whether it reaches no router of another host."""
    failing: bool = False
    """Whether its disk is full or refuses writes."""

    @classmethod
    def of(cls, state: NodeState) -> "NodeView":
        """Return the view of a node in this state."""
        return cls(
            state.node.name,
            state.node.host,
            state.leads,
            {**state.follows, **dict.fromkeys(state.leads, 0)},
            state.drains,
            state.router,
            state.apart,
            state.failing,
        )

    def lags(self, shard: int, limits: PlacementLimits) -> bool:
        """Return whether its copy of a shard has not caught up."""
        return self.follows[shard] > limits.behind_max


def without_the_unfit(views: Collection[NodeView]) -> list[NodeView]:
    """Return the views, with nodes that are failing or apart as draining. If no other node could lead, that does not count.

    A full disk is worse: of two hosts that do not reach each other the one with room is better.
    """
    found = _draining(views, lambda view: view.failing)
    return _draining(found, lambda view: view.apart)


def _draining(views: Collection[NodeView], unfit: Callable[[NodeView], bool]) -> list[NodeView]:
    if all(view.drains or unfit(view) for view in views):
        return list(views)
    return [replace(view, drains=True) if unfit(view) else view for view in views]


class NodeViews:
    """The last state of each node, with the time when this process read it."""

    def __init__(self, limits: PlacementLimits) -> None:
        self._limits = limits
        self._states: dict[str, tuple[NodeView, int]] = {}

    def read(self, state: NodeState, now_ms: int) -> None:
        """Note the state of a node."""
        self._states.pop(state.node.name, None)
        self._states[state.node.name] = (NodeView.of(state), now_ms)
        while len(self._states) > self._limits.nodes_max:
            self._states.pop(next(iter(self._states)))

    def live(self, now_ms: int) -> list[NodeView]:
        """Return the views of the live nodes, by name. Forget the others."""
        self._states = {name: state for name, state in self._states.items() if now_ms - state[1] <= self._limits.live_ms}
        return [view for _, (view, _) in sorted(self._states.items())]

    def clear(self) -> None:
        """Forget everything."""
        self._states.clear()
