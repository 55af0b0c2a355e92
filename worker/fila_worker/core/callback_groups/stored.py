"""The records of batches and their parts as they are stored: for tools that read a shard that is not open."""

from typing import Final

from fila_worker.core.callback_group_parts import PART, decode_part, parse_place
from fila_worker.core.callback_groups.owned import BATCH, CALLBACK, decode_batch, decode_callback, parse_batch_key

PREFIXES: Final = (BATCH, CALLBACK, PART)
"""The beginnings of the keys of all records of batches and parts, in the ``state`` family."""


def batch_queue(key: bytes) -> str:
    """Return the queue that a record goes with. Raise :class:`ValueError` if the key is of no batch."""
    return parse_place(key).queue if key.startswith(PART) else parse_batch_key(key)[0].queue


def check_record(key: bytes, value: bytes) -> None:
    """Raise :class:`ValueError` or :class:`msgspec.MsgspecError` for a record that can't be read."""
    if key.startswith(PART):
        parse_place(key)
        decode_part(value)
        return
    _, part = parse_batch_key(key)
    if key.startswith(CALLBACK):
        decode_callback(value)
    elif part is None:
        decode_batch(value)
    elif value:
        raise ValueError(f"{key.hex()} has a value of {len(value)} bytes, and is only a name")
