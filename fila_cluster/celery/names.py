"""Names of Celery's queues and exchanges as names of this broker's queues.

Celery's names may have any characters (a worker's mailbox has an ``@``). What a queue's name may not have is written as ``.xHH``, a byte in
hexadecimal; so is the dot of a name that has such a piece itself. Usual names stay as they are, and no two names become the same one.
"""

import re
from functools import lru_cache
from hashlib import blake2b

from fila_proto_zmq.limits import QUEUE_NAME_BYTES_MAX

EXCHANGE_PREFIX = "kombu.exchange."
"""In front of the name of an exchange, whose queue holds its bindings."""

_TO_ESCAPE = re.compile(rb"[^A-Za-z0-9._-]|\.(?=x[0-9a-f]{2})")
_DIGEST_BYTES = 16


class Names:
    """The names within one namespace; an empty one is none."""

    def __init__(self, namespace: str) -> None:
        self.prefix = f"{namespace}/" if namespace else ""

    def queue(self, name: str) -> str:
        """Return the broker's name of one of Celery's queues."""
        return self.prefix + _escaped(name, QUEUE_NAME_BYTES_MAX - len(self.prefix))

    def exchange(self, name: str) -> str:
        """Return the name of the queue that has the bindings of an exchange."""
        prefix = self.prefix + EXCHANGE_PREFIX
        return prefix + _escaped(name, QUEUE_NAME_BYTES_MAX - len(prefix))


@lru_cache(maxsize=4096)
def _escaped(name: str, room: int) -> str:
    escaped = _TO_ESCAPE.sub(lambda found: b".x%02x" % found[0][0], name.encode()).decode()
    if len(escaped) <= room:
        return escaped
    digest = blake2b(name.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{escaped[: room - len(digest) - 1]}-{digest}"
