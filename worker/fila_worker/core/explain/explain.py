"""The answer to "why does this wait?" for a message, a fairness key or a queue.

The first reason has to change first for a delivery at once. Several reasons may hold. Their order is: a pause; messages on
their way between partitions; a queue that is full; then the cap or the tokens of this message or key alone; then missing consumers; then the messages before it. One
exception: if no consumer has received from the queue for a while, and none holds a message of it, that reason comes before
caps and tokens.

The answer reads and changes nothing. Its cost is bounded, and only the request for it pays that cost.
"""

from typing import TYPE_CHECKING, ClassVar

from fila_proto_zmq.commands import Explain, Explained
from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.reasons import ReasonCode
from fila_worker.core.explain.backlog_reasons import explain_key, explain_queue
from fila_worker.core.explain.message_reasons import explain_message
from fila_worker.core.explain.text import reason
from fila_worker.core.model.component import Component

if TYPE_CHECKING:
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.state import State


def explain(state: "State", call: "ClientCall", command: Explain) -> "Work":
    """Return why a message, a fairness key or a queue waits."""
    queue = state.queues.find(call.queue)
    state.settle_writes()
    if command.id is not None:
        if command.fairness_key is not None:
            raise InvalidArgumentError("both a message id and a fairness key are given: ask about one of them")
        return (yield from explain_message(state, queue, *command.id, call.now_ms))
    if command.fairness_key is not None:
        return explain_key(state, queue, command.fairness_key, call.now_ms)
    return (yield from explain_queue(state, queue, call.now_ms))


def explain_without_log(state: "State", queue: str, why: str) -> Explained:
    """Return that nothing leaves the shard, because its log does not confirm. It shows nothing that may still be lost."""
    text = f"the log does not confirm: {why}; the shard continues by itself"
    details = {"queue": queue, "shard": state.index, "unconfirmed_bytes": state.store.unconfirmed_bytes}
    return Explained("unknown", [reason(ReasonCode.LOG_WAITS, text, **details)])


class Explanations(Component):
    """The command that explains why something waits."""

    verbs: ClassVar = {Explain: explain}
