"""Queue names, and which shard a queue lives on.

A queue and its dead letter queue share a *root* name and therefore a shard, so that dead-lettering and redriving are one
local write. Roots are placed by rendezvous (highest random weight) hashing: Thaler & Ravishankar, "Using Name-Based
Mappings to Increase Hit Rates", 1998. Adding a shard moves 1/n of the queues; no ring, no table to keep.

A queue with several *partitions* is as many queues for its shards: ``orders@0``, ``orders@1`` and so on, with dead letters in
``orders.dlq@0`` and so on. No user can give a queue such a name. The partitions are on consecutive shards, from the shard of
the whole queue's name on, its *home*.
"""

import re
from hashlib import blake2b
from typing import Final

from fila_proto_zmq.errors import InvalidArgumentError
from fila_proto_zmq.limits import PARTITIONS_MAX, QUEUE_NAME_BYTES_MAX

DEAD_LETTER_SUFFIX = ".dlq"
PARTITION_MARK: Final = "@"
ROUTING_KEY_BYTES_MAX: Final = QUEUE_NAME_BYTES_MAX + len(f"{DEAD_LETTER_SUFFIX}{PARTITION_MARK}{PARTITIONS_MAX - 1}")
"""Of the name of a queue, a dead letter queue, or a partition of one."""

_NAME = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)?", re.ASCII)
_HEX = re.compile(r"[0-9a-f]+", re.ASCII)

_PARTITION = re.compile(r"0|[1-9][0-9]{0,2}", re.ASCII)
_BEGINNING = re.compile(r"(?:[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]*)?)?\*", re.ASCII)


def check_queue_name(name: str) -> str:
    """Return ``name`` if it can name a queue, else raise :class:`InvalidArgumentError`."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"a queue name is a str, not {type(name).__name__}")
    length = len(root_name(name))  # .dlq comes on top: the longest queue name has a dead letter queue too
    if not 1 <= length <= QUEUE_NAME_BYTES_MAX:
        raise InvalidArgumentError(f"queue name of {length} characters: use 1 to {QUEUE_NAME_BYTES_MAX} of [A-Za-z0-9._-]")
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"bad queue name {name!r}: use [A-Za-z0-9._-], optionally as namespace/queue with one slash"
        )
    return name


def check_routing_key(name: str) -> str:
    """Return ``name`` if it names a queue or a partition of one, else raise :class:`InvalidArgumentError`."""
    queue, mark, number = name.partition(PARTITION_MARK)
    if mark and not (_PARTITION.fullmatch(number) and int(number) < PARTITIONS_MAX):
        raise InvalidArgumentError(f"bad partition {number[:16]!r} of a queue: use 0 to {PARTITIONS_MAX - 1}")
    check_queue_name(queue)
    return name


def check_new_queue_name(name: str) -> str:
    """Like :func:`check_queue_name`, and refuse names that only the broker gives."""
    check_queue_name(name)
    if is_dead_letter(name):
        raise InvalidArgumentError(f"queue name {name!r} ends in .dlq: those are made by the broker, one per queue")
    return name


def check_schedule_name(name: str) -> str:
    """Return ``name`` if it can name a schedule, else raise :class:`InvalidArgumentError`. The rules are those of queues."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"a schedule's name is a str, not {type(name).__name__}")
    if not 1 <= len(name) <= QUEUE_NAME_BYTES_MAX or not _NAME.fullmatch(name) or is_dead_letter(name):
        raise InvalidArgumentError(
            f"bad schedule name {name[: QUEUE_NAME_BYTES_MAX + 1]!r}: use 1 to {QUEUE_NAME_BYTES_MAX} of [A-Za-z0-9._-], "
            "optionally as namespace/name with one slash, not ending in .dlq"
        )
    return name


def check_pattern(pattern: str) -> str:
    """Return ``pattern`` if it is one of queues that may be created: a name, or the beginning of names and ``*``.

    Raises :class:`InvalidArgumentError` for anything else.
    """
    if not isinstance(pattern, str):
        raise InvalidArgumentError(f"a pattern of queue names is a str, not {type(pattern).__name__}")
    if pattern and not pattern.endswith("*"):
        return check_new_queue_name(pattern)
    if len(pattern) > QUEUE_NAME_BYTES_MAX + 1 or not _BEGINNING.fullmatch(pattern):
        raise InvalidArgumentError(
            f"bad pattern {pattern[: QUEUE_NAME_BYTES_MAX + 2]!r}: use a queue's name, "
            "or the beginning of names and * at its end, as in tenant-*"
        )
    return pattern


def matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern: the name itself, or its beginning and ``*``."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def is_dead_letter(name: str) -> bool:
    """Return whether ``name`` names a dead letter queue, or a partition of one."""
    return DEAD_LETTER_SUFFIX in name and whole_queue(name).endswith(DEAD_LETTER_SUFFIX)


def dead_letter_name(name: str) -> str:
    """Return the dead letter queue of ``name``: ``orders.dlq``, or ``orders.dlq@3`` of ``orders@3``."""
    queue, mark, number = name.partition(PARTITION_MARK)
    return f"{queue}{DEAD_LETTER_SUFFIX}{mark}{number}"


def partition_name(queue: str, partition: int) -> str:
    """Return the name of a partition of a queue."""
    return f"{queue}{PARTITION_MARK}{partition}"


def whole_queue(name: str) -> str:
    """Return the queue that users see: ``orders`` of its partition ``orders@3``."""
    return name.partition(PARTITION_MARK)[0] if PARTITION_MARK in name else name


BATCH_TOKEN_BYTES: Final = 16


def batch_id(queue: str, token: bytes) -> str:
    """Return the id of a batch: its callback's queue, ``#``, and its token."""
    return f"{queue}#{token.hex()}"


def parse_batch_id(text: str) -> tuple[str, bytes]:
    """Return the callback's queue, or its partition, and the token of a batch id. Raise :class:`InvalidArgumentError` for another text."""
    queue, mark, token = text.rpartition("#")
    if mark and len(token) == 2 * BATCH_TOKEN_BYTES and _HEX.fullmatch(token):
        return check_routing_key(queue), bytes.fromhex(token)
    raise InvalidArgumentError(f"bad batch id {text[:300]!r}: use the id that opening the batch gave")


def root_name(name: str) -> str:
    """Return the name that a queue shares with its dead letters: ``orders`` of ``orders.dlq``, ``orders@3`` of
    ``orders.dlq@3``.
    """
    queue, mark, number = name.partition(PARTITION_MARK)
    return queue.removesuffix(DEAD_LETTER_SUFFIX) + mark + number


def shard_of(name: str, shards: int) -> int:
    """Return the shard, ``0 <= shard < shards``, that holds queue ``name``. Costs about 1 µs per shard: cache it."""
    queue, mark, number = root_name(name).partition(PARTITION_MARK)
    root = queue.encode()
    home = max(range(shards), key=lambda shard: _score(root, shard))
    return (home + int(number)) % shards if mark else home


def _score(root: bytes, shard: int) -> bytes:
    return blake2b(root, digest_size=8, key=shard.to_bytes(4, "big")).digest()
