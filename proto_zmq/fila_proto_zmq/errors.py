"""Every error a peer can be told, one class per code. ``fila_cluster.errors`` re-exports them to users.

An error crosses the wire as ``(code, text, retry_after_ms, details)`` and becomes the same exception on the other side. The
text says what was wrong, with which value, and what to do about it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class FilaError(Exception):
    """Base of every error of fila-cluster; of this very class are those that happen in the client alone.

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
        return _rebuild, (type(self), self.message, self.retry_after, self.details)


def _rebuild(kind: type[FilaError], message: str, retry_after: float | None, details: Mapping[str, Any]) -> FilaError:
    return kind(message, retry_after=retry_after, details=details)


def _rebuild_batch(
    message: str, results: Sequence[Any], retry_after: float | None, details: Mapping[str, Any]
) -> "BatchError":
    return BatchError(message, results, retry_after=retry_after, details=details)


class QueueNotFoundError(FilaError):
    """The queue does not exist; create it first."""

    code = "QUEUE_NOT_FOUND"


class QueueExistsError(FilaError):
    """A queue of that name exists already."""

    code = "QUEUE_EXISTS"


class MessageNotFoundError(FilaError):
    """No message with that id is in the queue."""

    code = "MESSAGE_NOT_FOUND"


class LeaseExpiredError(FilaError):
    """The lease ended before it was settled; the message is, or was, somebody else's."""

    code = "LEASE_EXPIRED"


class AlreadySettledError(FilaError):
    """This delivery was settled before; a delivery is settled exactly once."""

    code = "ALREADY_SETTLED"


class LuaCompilationError(FilaError):
    """A hook script does not compile."""

    code = "LUA_COMPILATION"


class InvalidArgumentError(FilaError, ValueError):
    """An argument has a value that can never work."""

    code = "INVALID_ARGUMENT"


class InvalidConfigError(FilaError):
    """A configuration key or value is not acceptable; the old value stays in force."""

    code = "INVALID_CONFIG"


class NotADeadLetterQueueError(FilaError):
    """Only a dead letter queue can be redriven."""

    code = "NOT_A_DEAD_LETTER_QUEUE"


class DeadLetterQueueNotEmptyError(FilaError):
    """The queue's dead letters would be lost; redrive or purge them, or force the deletion."""

    code = "DEAD_LETTER_QUEUE_NOT_EMPTY"


class PayloadTooLargeError(FilaError):
    """The payload is larger than the broker accepts."""

    code = "PAYLOAD_TOO_LARGE"


class RateLimitedError(FilaError):
    """A namespace is over its enqueue quota; ``retry_after`` says when it is not."""

    code = "RATE_LIMITED"
    retryable = True


class OverloadedError(FilaError):
    """The broker has too much in hand to accept this now."""

    code = "OVERLOADED"
    retryable = True


class UnauthenticatedError(FilaError):
    """The API key is missing, unknown, expired or revoked."""

    code = "UNAUTHENTICATED"


class PermissionDeniedError(FilaError):
    """The API key does not allow this."""

    code = "PERMISSION_DENIED"


class ShardUnavailableError(FilaError):
    """The worker that holds the queue is down; it will be back by itself."""

    code = "SHARD_UNAVAILABLE"
    retryable = True


class RequestTimeoutError(FilaError):
    """No answer came in time; whether the broker did the work is unknown."""

    code = "REQUEST_TIMEOUT"
    retryable = True


class UnsupportedVersionError(FilaError):
    """The two sides speak no common version of the protocol."""

    code = "UNSUPPORTED_VERSION"


class InvalidFrameError(FilaError):
    """A frame that is not of this protocol, or a body that does not fit its opcode."""

    code = "INVALID_FRAME"


class StorageError(FilaError):
    """The disk refused a read or a write."""

    code = "STORAGE"


class InternalError(FilaError):
    """The broker fails at this command, and does not try it again; ``details["failure"]`` is an id that its log explains."""

    code = "INTERNAL"


class BatchError(FilaError):
    """Some items of a batch failed; the others are done.

    ``results`` has one entry per item, in request order: the item's result, or the :class:`FilaError` that it met.
    """

    code = "BATCH"

    def __init__(self, message: str, results: Sequence[Any] = (), **rest: Any) -> None:
        super().__init__(message, **rest)
        self.results = list(results)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_batch, (self.message, self.results, self.retry_after, self.details)


BY_CODE: dict[str, type[FilaError]] = {
    kind.code: kind
    for kind in (
        FilaError,
        QueueNotFoundError,
        QueueExistsError,
        MessageNotFoundError,
        LeaseExpiredError,
        AlreadySettledError,
        LuaCompilationError,
        InvalidArgumentError,
        InvalidConfigError,
        NotADeadLetterQueueError,
        DeadLetterQueueNotEmptyError,
        PayloadTooLargeError,
        RateLimitedError,
        OverloadedError,
        UnauthenticatedError,
        PermissionDeniedError,
        ShardUnavailableError,
        RequestTimeoutError,
        UnsupportedVersionError,
        InvalidFrameError,
        StorageError,
        InternalError,
        BatchError,
    )
}
