# Made by .ci/make_blocking.py from fila_cluster/client/asynchronous/message_batches.py: edit that, then run `make blocking`.

"""The batches that ``batch()`` returns: messages with a callback that is enqueued when all of them are done."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from fila_cluster.client.calls.messages import BatchTerms, check_open, only_error
from fila_cluster.client.message import BytesLike, EnqueueOptions, Message
from fila_proto_zmq.errors import BatchError, FilaError

if TYPE_CHECKING:
    from fila_cluster.client.blocking.client import Client


class MessageBatch:
    """Messages of any queues that belong together. Use it in a ``with``.

    Entering opens it, leaving seals it. Its callback is enqueued once, when each of its messages is acked, dead-lettered
    or removed. If the block ends with an exception, the batch is abandoned: the enqueued messages stay in their queues,
    and no callback comes. A batch that is neither sealed nor abandoned, because its client died, is forgotten after a day.
    """

    def __init__(self, client: "Client", terms: BatchTerms) -> None:
        self._client = client
        self._terms = terms
        self._stage = "not open"

    @property
    def id(self) -> str:
        """Its id: the header ``fila-batch`` of its callback."""
        return self._terms.id

    @property
    def name(self) -> str | None:
        """Its name for people: the header ``fila-batch-name`` of its callback."""
        return self._terms.name

    def enqueue(
        self, queue: str, payload: BytesLike, headers: Mapping[str, str] | None = None, **options: Unpack[EnqueueOptions]
    ) -> str:
        """Enqueue a message of the batch, as :meth:`Client.enqueue` does.

        If its answer is lost, it counts for the batch if it was stored. A message whose ``dedup_id`` is known is not
        stored, and does not count again.

        Args:
            queue: The queue.
            payload: The payload, as bytes.
            headers: Names and values, both text; at most 64 KiB.

        Raises:
            InvalidArgumentError: The batch is sealed, abandoned or forgotten.
        """
        try:
            (message_id,) = self.enqueue_many(queue, [Message(payload, headers, **options)])
        except BatchError as error:
            raise only_error(error) from None
        return message_id

    def enqueue_many(self, queue: str, messages: Iterable[Message]) -> list[str]:
        """Enqueue messages of the batch, as :meth:`Client.enqueue_many` does.

        Args:
            queue: The queue of all messages.
            messages: The messages.

        Raises:
            BatchError: Some messages were not accepted. The others are in the queue.
            InvalidArgumentError: The batch is sealed or abandoned.
        """
        check_open(self._stage)
        return self._client._enqueue_all(queue, messages, self.id)

    def seal(self) -> None:
        """Take no more messages: the callback comes when those that were enqueued are done. Leaving the context does this.

        It may be repeated: if leaving raised a retryable error, call it until it succeeds.
        """
        self._client.request(self._terms.seal())
        self._stage = "sealed"

    def __enter__(self) -> Self:
        self._client.request(self._terms.open())
        self._terms.opened(self._client._session.plans.entrance(self._terms.queue))
        self._stage = ""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.seal()
        elif not self._stage:
            self._stage = "abandoned"
            with suppress(FilaError):  # then it is forgotten after a day
                self._client.request(self._terms.abandon())

    def __repr__(self) -> str:
        return f"<MessageBatch {self.id}{f', {self._stage}' if self._stage else ''}>"
