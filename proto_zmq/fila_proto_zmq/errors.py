"""Every error of the wire, one class per code. ``fila_cluster.errors`` re-exports them to users.

An error crosses the wire as ``(code, text, retry_after_ms, details)`` and becomes the same exception on the other side. The
text says what was wrong, with which value, and what to do about it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar


class FilaError(Exception):
    """Base of every error of fila-cluster; errors that happen in the client alone have this class.

    ``code`` names the error on the wire and in ``--json`` output, ``retryable`` says whether the same call may succeed
    later, ``retry_after`` (seconds) when, if that is known, and ``details`` carries the numbers behind the text.
    """

    code: ClassVar[str] = "FILA"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, retry_after: float | None = None, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.details: dict[str, Any] = dict(details or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), retry_after=self.retry_after, details=self.details), (self.message,)


class QueueNotFoundError(FilaError):
    """The queue does not exist; create it first."""

    code = "QUEUE_NOT_FOUND"


class QueueExistsError(FilaError):
    """A queue of that name exists already."""

    code = "QUEUE_EXISTS"


class PartitionedError(FilaError):
    """The queue has several partitions: ask those. Client libraries do so, and never raise it. ``details`` has its
    ``partitions`` and its ``spread``; or ``template``, if its first message makes it so."""

    code = "PARTITIONED"


class MessageNotFoundError(FilaError):
    """No message with that id is in the queue: it was settled or removed, or never there."""

    code = "MESSAGE_NOT_FOUND"


class LeaseExpiredError(FilaError):
    """The lease ended before it was settled or extended; the message is, or was, another consumer's."""

    code = "LEASE_EXPIRED"


class AlreadySettledError(FilaError):
    """This delivery was settled before; a delivery is settled exactly once. Client libraries raise it."""

    code = "ALREADY_SETTLED"


class LuaCompilationError(FilaError):
    """A hook script does not compile; the text names the line."""

    code = "LUA_COMPILATION"


class InvalidArgumentError(FilaError, ValueError):
    """An argument has a value that can never work."""

    code = "INVALID_ARGUMENT"


class InvalidConfigError(FilaError):
    """A configuration key or value is not acceptable; the old value stays in force."""

    code = "INVALID_CONFIG"


class NotADeadLetterQueueError(FilaError):
    """Only a dead letter queue can be redriven, or a queue that another one names as its ``dead_letter``."""

    code = "NOT_A_DEAD_LETTER_QUEUE"


class DeadLetterQueueNotEmptyError(FilaError):
    """The queue's dead letters would be lost; redrive or purge them, or force the deletion."""

    code = "DEAD_LETTER_QUEUE_NOT_EMPTY"


class PayloadTooLargeError(FilaError):
    """The payload is larger than the broker accepts; ``details`` has ``payload_bytes`` and ``max_payload_bytes``."""

    code = "PAYLOAD_TOO_LARGE"


class RateLimitedError(FilaError):
    """A namespace is over its enqueue quota; ``retry_after`` is when it has room again."""

    code = "RATE_LIMITED"
    retryable = True


class OverloadedError(FilaError):
    """The broker has too much in flight to accept this, or a queue, a key or the disk is full."""

    code = "OVERLOADED"
    retryable = True


class UnauthenticatedError(FilaError):
    """The API key is missing, unknown, expired or revoked."""

    code = "UNAUTHENTICATED"


class PermissionDeniedError(FilaError):
    """The API key does not allow this."""

    code = "PERMISSION_DENIED"


class ShardUnavailableError(FilaError):
    """The worker that holds the queue is down; it comes back by itself."""

    code = "SHARD_UNAVAILABLE"
    retryable = True


class RequestTimeoutError(FilaError):
    """No answer came in time; whether the broker did the work is unknown."""

    code = "REQUEST_TIMEOUT"
    retryable = True


class UnsupportedVersionError(FilaError):
    """The two sides speak no common version of the protocol; ``details`` has the broker's ``versions``."""

    code = "UNSUPPORTED_VERSION"


class InvalidFrameError(FilaError):
    """A frame is not of this protocol, or its body does not fit its opcode; a header that cannot be read is answered with
    opcode 0, request 0."""

    code = "INVALID_FRAME"


class StorageError(FilaError):
    """The disk refused a read or a write."""

    code = "STORAGE"


class InternalError(FilaError):
    """The command made its shard fail twice, and is refused; ``details["failure"]`` is an id in the broker's log."""

    code = "INTERNAL"


class BatchError(FilaError):
    """Some items of a batch failed; the others are done. Client libraries raise it.

    ``results`` has one entry per item, in request order: the item's result, or its :class:`FilaError`.
    """

    code = "BATCH"

    def __init__(self, message: str, results: Sequence[Any] = (), **rest: Any) -> None:
        super().__init__(message, **rest)
        self.results = list(results)

    def __reduce__(self) -> tuple[Any, ...]:
        made = partial(BatchError, retry_after=self.retry_after, details=self.details)
        return made, (self.message, self.results)


_KINDS: list[type[FilaError]] = [FilaError, *FilaError.__subclasses__()]
BY_CODE = {kind.code: kind for kind in _KINDS}
"""The errors by their codes: each is a direct subclass, and stands above."""
