"""Views of nodes, for tests."""

from fila_worker.log.placement.views import NodeView


def node(
    name: str, leads: list[int] | None = None, follows: dict[int, int] | None = None, *, host: str = "", drains: bool = False
) -> NodeView:
    """Return the view of a node, by default the only one of its host."""
    led = dict.fromkeys(leads or [], 100)
    return NodeView(name, host or name, led, {**dict.fromkeys(led, 0), **(follows or {})}, drains)


def everything(shards: int) -> dict[int, int]:
    """Return that a node follows all shards closely."""
    return dict.fromkeys(range(shards), 0)
