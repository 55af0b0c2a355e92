"""Every error that fila-cluster raises, one class per code.

:class:`FilaError` is the base of them all. An error has ``code``, ``retryable``, ``retry_after`` (seconds) and ``details``;
its text has the problem, the value and the remedy. They are defined beside the wire protocol, because most of them are
answers of the broker.
"""

from fila_proto_zmq.errors import (
    AlreadySettledError,
    BatchError,
    DeadLetterQueueNotEmptyError,
    FilaError,
    InternalError,
    InvalidArgumentError,
    InvalidConfigError,
    InvalidFrameError,
    LeaseExpiredError,
    LuaCompilationError,
    MessageNotFoundError,
    NotADeadLetterQueueError,
    OverloadedError,
    PayloadTooLargeError,
    PermissionDeniedError,
    QueueExistsError,
    QueueNotFoundError,
    RateLimitedError,
    RequestTimeoutError,
    ShardUnavailableError,
    StorageError,
    UnauthenticatedError,
    UnsupportedVersionError,
)

__all__ = [
    "AlreadySettledError",
    "BatchError",
    "DeadLetterQueueNotEmptyError",
    "FilaError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidConfigError",
    "InvalidFrameError",
    "LeaseExpiredError",
    "LuaCompilationError",
    "MessageNotFoundError",
    "NotADeadLetterQueueError",
    "OverloadedError",
    "PayloadTooLargeError",
    "PermissionDeniedError",
    "QueueExistsError",
    "QueueNotFoundError",
    "RateLimitedError",
    "RequestTimeoutError",
    "ShardUnavailableError",
    "StorageError",
    "UnauthenticatedError",
    "UnsupportedVersionError",
]
