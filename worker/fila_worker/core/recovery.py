"""From a store to a running shard: after a crash, a stop, or for the first time.

Reads the queues, the lanes with their counts (not the messages), the leases with the keys that they list, and the first
delayed message: so a restart costs what is in flight and how many lanes there are, never the backlog.

It goes in steps of a bounded number of records, so that the other shards of a process go on meanwhile. Nothing is written before
the last step. What can't be read, or contradicts something else, is a :class:`DamageError` that says so: a shard that went on
without it would overwrite what may still be rescued.
"""

from collections.abc import Generator
from struct import error as StructError  # noqa: N812  # it is a class
from traceback import extract_tb
from typing import Final

import msgspec

from fila_worker.core.hooks import HookCompiler
from fila_worker.core.settings import ShardSettings
from fila_worker.core.shard import Shard
from fila_worker.core.store import DamageError, Store, WrongStoreError

FORMAT: Final = 3
_IDENTITY: Final = b"identity"


class Identity(msgspec.Struct, array_like=True):
    """Which shard a store holds. ``epoch`` grows with every opening."""

    format: int
    shard: int
    shards: int
    epoch: int


_CONTRADICTIONS: Final = (LookupError, ValueError, TypeError, AssertionError, StructError, msgspec.MsgspecError)
"""What code meets that reads records of which one is not what another says."""


def recover(
    store: Store,
    settings: ShardSettings,
    compile_hooks: HookCompiler,
    *,
    index: int,
    shards: int,
    now_ms: int,
    entropy: int = 0,
) -> Shard:
    """Open shard ``index`` of ``shards`` in ``store``, new if the store is empty, without a pause.

    ``entropy``: 64 random bits, which tell this opening from any other, also where the epoch is given out again because the store
    was restored from a copy. The epoch is synced before anything is served.

    Raises what :func:`recover_in_steps` does.
    """
    steps = recover_in_steps(store, settings, compile_hooks, index=index, shards=shards, now_ms=now_ms, entropy=entropy)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            shard: Shard = done.value
            return shard


def recover_in_steps(
    store: Store,
    settings: ShardSettings,
    compile_hooks: HookCompiler,
    *,
    index: int,
    shards: int,
    now_ms: int,
    entropy: int = 0,
) -> Generator[None, int | None, Shard]:
    """The same in steps; send the time with each. Returns the shard.

    Raises :class:`WrongStoreError` if the store holds another shard, or another format, and :class:`DamageError`.
    """
    identity = _claim(store, index, shards)
    shard = Shard(store, settings, compile_hooks, index=index, shards=shards, epoch=identity.epoch, entropy=entropy)
    try:
        for component in shard.components:
            yield from component.recover(now_ms)
    except _CONTRADICTIONS as cause:
        raise DamageError(f"the records of shard {index} contradict each other: {_said(cause)}") from cause
    shard.batch.put(_IDENTITY, msgspec.msgpack.encode(identity), store.families.state)
    shard.to_be_synced = True
    shard.commit()
    return shard


def _said(cause: Exception) -> str:
    """What was found, and where, without the records' contents."""
    frame = extract_tb(cause.__traceback__)[-1]
    text = str(cause) if isinstance(cause, (msgspec.MsgspecError, KeyError, AssertionError)) else ""
    return f"{type(cause).__name__} {text} in {frame.name}".replace("  ", " ")


def _claim(store: Store, index: int, shards: int) -> Identity:
    data = store.get(_IDENTITY, store.families.state)
    if data is None:
        return Identity(FORMAT, index, shards, 1)
    try:
        identity = msgspec.msgpack.decode(data, type=Identity)
    except msgspec.MsgspecError as cause:
        raise DamageError(f"the data of shard {index} is damaged: its identity can't be read ({cause})") from cause
    if identity.format > FORMAT:
        raise WrongStoreError(f"the data was written by a later version (format {identity.format}): upgrade fila-cluster")
    if identity.format < FORMAT:
        raise WrongStoreError(
            f"the data was written by a preview (format {identity.format}, this version reads {FORMAT}): "
            "use another data directory, or consume what is in it with the version that wrote it"
        )
    if (identity.shard, identity.shards) != (index, shards):
        raise WrongStoreError(
            f"the data is of shard {identity.shard} of {identity.shards}, not of shard {index} of {shards}: "
            "start with the data directory and the number of shards that belong together"
        )
    identity.epoch += 1
    return identity
