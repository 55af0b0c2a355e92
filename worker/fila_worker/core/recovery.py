"""Recovery: from a store to a running shard, after a crash, after a stop, or for the first time.

It reads the queues, the lanes with their counts (not the messages), the leases with the keys that they list, and the first
delayed message. So the cost of a restart depends on the messages in flight and the number of lanes, never on the backlog.

It takes steps of a bounded number of records, so that the other shards of a process run meanwhile. Nothing is written before
the last step. A record that can't be read, or contradicts another one, raises :class:`DamageError`: without the record, the
shard would overwrite data that may still be rescued.
"""

from collections.abc import Generator
from struct import error as StructError  # noqa: N812  # it is a class
from traceback import extract_tb
from typing import Final

import msgspec

from fila_worker.core.calendar import Calendar
from fila_worker.core.hooks import HookCompiler
from fila_worker.core.model.state import Opening
from fila_worker.core.settings import ShardSettings
from fila_worker.core.shard import Shard
from fila_worker.core.store import DamageError, Store, StoreBatch, WrongStoreError

FORMAT: Final = 3
IDENTITY: Final = b"identity"


class Identity(msgspec.Struct, array_like=True):
    """The shard that a store holds. ``epoch`` grows with every opening."""

    format: int
    shard: int
    shards: int
    epoch: int


EPOCHS_SKIPPED: Final = 1 << 12
"""More than the openings of a shard between a backup and its restore. Lease ids have 24 bits for the epoch."""


def begin_anew(store: Store, index: int, shards: int) -> int:
    """Prepare a restored copy of a shard: it skips all epochs of the original. Return the next epoch.

    Raise the errors of :func:`recover_in_steps`.
    """
    if store.get(IDENTITY, store.families.state) is None:
        raise DamageError(f"the copy of shard {index} is empty: it has no identity")
    identity = _claim(store, index, shards)
    identity.epoch += EPOCHS_SKIPPED
    batch = store.new_batch()
    batch.put(IDENTITY, msgspec.msgpack.encode(identity), store.families.state)
    store.commit(batch, sync=True)
    return identity.epoch + 1


_CONTRADICTIONS: Final = (LookupError, ValueError, TypeError, AssertionError, StructError, msgspec.MsgspecError)
"""The errors of code that reads records which contradict each other."""


def recover(
    store: Store,
    settings: ShardSettings,
    compile_hooks: HookCompiler,
    *,
    index: int,
    shards: int,
    now_ms: int,
    entropy: int = 0,
    calendar: Calendar | None = None,
) -> Shard:
    """Open shard ``index`` of ``shards`` in ``store``, new if the store is empty, without a pause. Return the shard.

    ``entropy``: 64 random bits. They distinguish this opening from all others, also if the epoch is used again because the
    store was restored from a copy. The epoch is synced before the shard serves anything. ``calendar``: for the schedules;
    None: those with cron expressions are not carried out.

    Raise the errors of :func:`recover_in_steps`.
    """
    steps = recover_in_steps(
        store, settings, compile_hooks, index=index, shards=shards, now_ms=now_ms, entropy=entropy, calendar=calendar
    )
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
    calendar: Calendar | None = None,
) -> Generator[None, int | None, Shard]:
    """Open a shard in steps, as :func:`recover` does at once. Send the time with each step. Return the shard.

    Raise :class:`WrongStoreError` if the store holds another shard, or another format; or :class:`DamageError`.
    """
    identity = _claim(store, index, shards)
    shard = Shard(store, settings, compile_hooks, Opening(index, shards, identity.epoch, entropy))
    shard.calendar = calendar or shard.calendar
    try:
        for component in shard.components:
            yield from component.recover(now_ms)
    except _CONTRADICTIONS as cause:
        raise DamageError(f"the records of shard {index} contradict each other: {_said(cause)}") from cause
    shard.batch.put(IDENTITY, msgspec.msgpack.encode(identity), store.families.state)
    shard.to_be_synced = True
    shard.commit()
    return shard


def read_identity(store: Store) -> Identity | None:
    """Return the shard that a store holds; None if it is new. Raise :class:`DamageError` or :class:`WrongStoreError`."""
    data = store.get(IDENTITY, store.families.state)
    if data is None:
        return None
    try:
        identity = msgspec.msgpack.decode(data, type=Identity)
    except msgspec.MsgspecError as cause:
        raise DamageError(f"the data of a shard is damaged: its identity can't be read ({cause})") from cause
    if identity.format > FORMAT:
        raise WrongStoreError(f"the data was written by a later version (format {identity.format}): upgrade fila-cluster")
    if identity.format < FORMAT:
        raise WrongStoreError(
            f"the data was written by a preview (format {identity.format}, this version reads {FORMAT}): "
            "use another data directory, or consume what is in it with the version that wrote it"
        )
    return identity


def write_identity(store: Store, batch: StoreBatch, *, index: int, shards: int, epoch: int) -> None:
    """Make a store that of shard ``index`` of ``shards``. Its next opening has the epoch after ``epoch``."""
    identity = Identity(FORMAT, index, shards, epoch)
    batch.put(IDENTITY, msgspec.msgpack.encode(identity), store.families.state)


def _said(cause: Exception) -> str:
    """Return the error and where it occurred, without the records' contents."""
    frame = extract_tb(cause.__traceback__)[-1]
    text = str(cause) if isinstance(cause, (msgspec.MsgspecError, KeyError, AssertionError)) else ""
    return f"{type(cause).__name__} {text} in {frame.name}".replace("  ", " ")


def _claim(store: Store, index: int, shards: int) -> Identity:
    identity = read_identity(store)
    if identity is None:
        return Identity(FORMAT, index, shards, 1)
    if (identity.shard, identity.shards) != (index, shards):
        raise WrongStoreError(
            f"the data is of shard {identity.shard} of {identity.shards}, not of shard {index} of {shards}: "
            "start with the data directory and the number of shards that belong together"
        )
    identity.epoch += 1
    return identity
