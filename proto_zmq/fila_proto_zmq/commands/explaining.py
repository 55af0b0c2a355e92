"""Why something waits."""

from typing import Any, ClassVar

from fila_proto_zmq.commands.structs import Command, Reply, Struct


class Reason(Struct):
    """One thing that keeps messages waiting. ``until_ms`` is when it ends, 0 if that is not known."""

    code: str
    """A :class:`~fila_proto_zmq.reasons.ReasonCode`."""
    text: str
    until_ms: int
    details: dict[str, Any]


class Explained(Reply):
    """Why something waits: first what has to change first for a delivery to happen now."""

    state: str
    """``pending``, ``delayed``, ``leased`` or ``dead_lettered``; of a key or a queue that has no messages, ``empty``."""
    reasons: list[Reason]
    position: int | None = None
    """How many messages of its key go before it; nil where it does not apply."""
    estimated_ms: int = 0
    """When it will be delivered, from current rates; 0: nothing can be said."""


class Explain(Command):
    """Why is this message still waiting, or this fairness key? Neither is named: the queue."""

    opcode: ClassVar[int] = 19
    reply: ClassVar[type[Reply]] = Explained
    id: tuple[int, int] | None = None
    fairness_key: str | None = None
