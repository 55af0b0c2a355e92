"""Calls that receive and settle messages, or enqueue batches: their arguments, checked, and the error of a batch."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fila_cluster.client import checks
from fila_cluster.client.calls.request import Request
from fila_cluster.client.message import Message
from fila_cluster.client.protocol.delivery import Delivery
from fila_cluster.client.protocol.encoding import seal_message, seal_rows
from fila_cluster.client.protocol.settling import ACK, Settlement, Settling, settlement
from fila_proto_zmq.commands import AbandonBatch, OpenBatch, SealBatch, Verb
from fila_proto_zmq.errors import BatchError, FilaError, InvalidArgumentError
from fila_proto_zmq.limits import DELAY_MS_MAX, FRAME_MESSAGES_MAX, PREFETCH_MAX, WAIT_MS_MAX
from fila_proto_zmq.names import BATCH_TOKEN_BYTES, batch_id


def one_queue(queue: Any, max_messages: Any) -> dict[str, int]:
    """Return the queue of a receive, with how many messages to take."""
    return {checks.queue_name(queue): checks.whole_number("max_messages", max_messages, 1, PREFETCH_MAX)}


def several_queues(queues: Any) -> dict[str, int]:
    """Return the queues of a receive, with how many messages to take of each."""
    if not isinstance(queues, Mapping) or not queues:
        raise InvalidArgumentError(f"queues={checks.shown(queues)}: pass a dict of queue names and how many messages of each")
    return {
        checks.queue_name(queue): checks.whole_number(f"queues[{queue!r}]", count, 1, PREFETCH_MAX)
        for queue, count in queues.items()
    }


def prefetch_count(prefetch: Any) -> int:
    """Return how many unsettled messages a subscription may hold."""
    return checks.whole_number("prefetch", prefetch, 1, PREFETCH_MAX)


OUTSTANDING_MAX = 10_000_000
LINGER_MS_MAX = 60_000
PATIENCE_MS_MAX = 24 * 3600 * 1000


def pipe_options(linger: Any, batch: Any, max_outstanding: Any) -> tuple[float, int, int]:
    """Return how long a producer's messages linger (seconds), how many travel together, how many may be unconfirmed."""
    checks.milliseconds("linger", linger, LINGER_MS_MAX)
    return (
        float(linger),
        checks.whole_number("batch", batch, 1, FRAME_MESSAGES_MAX),
        checks.whole_number("max_outstanding", max_outstanding, 1, OUTSTANDING_MAX),
    )


def queue_of(queue: Any, usual: str | None) -> str:
    """Return the queue of a message: its own, or its producer's."""
    if queue is not None:
        return checks.queue_name(queue)
    if usual is None:
        raise InvalidArgumentError(
            "queue=None: this producer has no queue, name one in send(…, queue=…) or in producer(queue)"
        )
    return usual


def error_callback(on_error: Any) -> Callable[[FilaError], object] | None:
    """Return what gets the errors that are not looked at."""
    if on_error is not None and not callable(on_error):
        raise InvalidArgumentError(f"on_error={checks.shown(on_error)}: pass a function of one argument, the error")
    return on_error  # type: ignore[no-any-return]


def patience_s(timeout: Any) -> float | None:
    """Return how long to wait, in seconds; None: for as long as it takes."""
    return None if timeout is None else checks.milliseconds("timeout", timeout, PATIENCE_MS_MAX) / 1000


PREFETCHED_BATCHES = 4
"""One that the caller has, one whose settlement is under way, one that is ready, and one on its way."""


def batch_options(max_messages: Any, max_wait: Any, prefetch: Any) -> tuple[int, float, int]:
    """Return how many messages a batch has, how long it may take to fill (seconds), and how many may be unsettled."""
    count = checks.whole_number("max_messages", max_messages, 1, PREFETCH_MAX)
    checks.milliseconds("max_wait", max_wait, WAIT_MS_MAX)
    unsettled = min(PREFETCHED_BATCHES * count, PREFETCH_MAX) if prefetch is None else prefetch_count(prefetch)
    return min(count, unsettled), float(max_wait), unsettled


def outcomes_of(outcomes: Any) -> Iterable[tuple[Any, Any]]:
    """Return deliveries with how each ends, checked."""
    if not isinstance(outcomes, Mapping):
        raise InvalidArgumentError(
            f"outcomes={checks.shown(outcomes)}: pass a dict of deliveries, for example {{delivery: 'ack'}}"
        )
    as_deliveries(list(outcomes))
    return outcomes.items()


def settlement_of(how: Any) -> Settlement:
    """Return the settlement that a caller names: a verb, or a pair of a verb and its argument."""
    verb, argument = how if isinstance(how, tuple) and len(how) == 2 else (how, None)
    if not isinstance(verb, str):
        pass
    elif argument is None and verb in _PLAIN:
        return _PLAIN[verb]
    elif argument is not None and verb in _WITH_ARGUMENT:
        return _WITH_ARGUMENT[verb](argument)
    raise InvalidArgumentError(
        f"{checks.shown(how)} is not a settlement: use 'ack', 'nack', 'retry' or 'fail', or a pair: ('nack', error), "
        "('fail', error), ('retry', after), ('defer', retry_after)"
    )


_PLAIN = {"ack": ACK, "nack": settlement(Verb.NACK), "retry": settlement(Verb.RETRY), "fail": settlement(Verb.FAIL)}
_WITH_ARGUMENT: dict[str, Callable[[Any], Settlement]] = {
    "nack": partial(settlement, Verb.NACK),
    "fail": partial(settlement, Verb.FAIL),
    "retry": lambda after: settlement(Verb.RETRY, after_ms=checks.milliseconds("after", after, DELAY_MS_MAX)),
    "defer": lambda after: settlement(Verb.DEFER, after_ms=checks.positive_milliseconds("retry_after", after, DELAY_MS_MAX)),
}


def failure_of_one(settling: Settling) -> FilaError:
    """Return the error of a settlement of one delivery, which failed."""
    return settling.errors.pop(0)  # an error's traceback holds the settling: no cycle through it


def failure_of(settling: Settling) -> FilaError:
    """Return the error of a batch of settlements, of which some failed."""
    return failure_among([settling.errors.get(position) for position in range(len(settling.deliveries))])


def failure_among(results: Sequence[FilaError | None], message_ids: Sequence[str] = ()) -> BatchError:
    """Return the error of settlements with these results, some of which failed; ``message_ids`` name those that did."""
    failed = [(position, error) for position, error in enumerate(results) if error is not None]
    return BatchError(
        f"{len(failed)} of {len(results)} deliveries were not settled; the first is number {failed[0][0]}: {failed[0][1]}",
        results,
        details={"message_ids": list(message_ids)} if message_ids else None,
    )


def as_deliveries(deliveries: Any) -> Sequence[Delivery]:
    """Return a batch to settle, checked."""
    batch = deliveries if isinstance(deliveries, (list, tuple)) else list(checks.several("deliveries", deliveries))
    for delivery in batch:
        if not isinstance(delivery, Delivery):
            raise InvalidArgumentError(
                f"a {type(delivery).__name__} is not a delivery: pass what receive or consume returned"
            )
    return batch


class BatchTerms:
    """The terms of a new batch: its callback, checked, and its id."""

    def __init__(self, callback: Any, queue: Any, name: Any) -> None:
        """Raise :class:`InvalidArgumentError` if an argument is malformed."""
        if not isinstance(callback, Message):
            raise InvalidArgumentError(
                f"callback={checks.shown(callback)}: pass a Message, which is enqueued when the batch is done"
            )
        if callback.dedup_id is not None:
            raise InvalidArgumentError(
                f"the callback has dedup_id={checks.shown(callback.dedup_id)}: leave it out, "
                "a callback is enqueued once in any case"
            )
        if name is not None:
            if not isinstance(name, str):
                raise InvalidArgumentError(f"name={checks.shown(name)}: use a str, or None")
            checks.encodable("name", name)
        self.queue = checks.queue_name(queue)
        self.name: str | None = name
        self._token = secrets.token_bytes(BATCH_TOKEN_BYTES)
        self._callback = seal_rows([seal_message(callback)])

    def opened(self, queue: str) -> None:
        """Note the queue that has it: the callback's queue, or a partition of that."""
        self.queue = queue

    @property
    def id(self) -> str:
        """The id of the batch."""
        return batch_id(self.queue, self._token)

    def open(self) -> Request:
        """Return the request that opens it."""
        return Request(self.queue, OpenBatch(self._token, self._callback, self.name or ""))

    def seal(self) -> Request:
        """Return the request that seals it."""
        return Request(self.queue, SealBatch(self._token))

    def abandon(self) -> Request:
        """Return the request that abandons it."""
        return Request(self.queue, AbandonBatch(self._token))


def check_open(stage: str) -> None:
    """Raise :class:`InvalidArgumentError` if a batch takes no messages. ``stage``: its state in a word, empty if open."""
    if stage:
        raise InvalidArgumentError(f"this batch is {stage}: enqueue its messages inside its with block")


def only_error(error: BatchError) -> Exception:
    """Return the error of a message that was enqueued alone."""
    result = error.results[0]
    return result if isinstance(result, Exception) else error
