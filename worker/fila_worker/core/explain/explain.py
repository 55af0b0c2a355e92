"""Why does this wait? The question, for a message, a fairness key or a queue, and where its answer is made.

The first reason is what has to change first for a delivery to happen now. Several may hold: what somebody decided (a pause) comes first,
then what is in the way of this message or key alone (its cap, its tokens), then that nobody would take it, then who goes before it. But
where nobody has read a queue for a while, and nobody holds anything of it, that comes before caps and tokens.

It reads, and changes nothing. What an answer costs is bounded, and nobody pays for it who does not ask.
"""

from typing import TYPE_CHECKING, ClassVar

from fila_proto_zmq.commands import Explain
from fila_proto_zmq.errors import InvalidArgumentError
from fila_worker.core.component import Component
from fila_worker.core.explain.backlog_reasons import explain_key, explain_queue
from fila_worker.core.explain.message_reasons import explain_message

if TYPE_CHECKING:
    from fila_worker.core.effects import Call
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.state import State


def explain(state: "State", call: "Call", command: Explain) -> "Work":
    """Say why a message, a fairness key or a queue waits."""
    queue = state.queues.find(call.queue)
    state.settle_writes()
    if command.id is not None:
        if command.fairness_key is not None:
            raise InvalidArgumentError("a message or a fairness key: ask for one of them")
        return (yield from explain_message(state, queue, *command.id, call.now_ms))
    if command.fairness_key is not None:
        return explain_key(state, queue, command.fairness_key, call.now_ms)
    return (yield from explain_queue(state, queue, call.now_ms))


class Explanations(Component):
    """Why something waits."""

    verbs: ClassVar = {Explain: explain}
