"""Changes of the runtime config: judged and numbered on shard 0, taken over by all.

The router tells every other shard of a change that shard 0 has made durable, and brings whoever was away up to date.
"""

from collections.abc import Generator, Iterable
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedList

from fila_proto_zmq import runtime_config
from fila_proto_zmq.commands import ConfigChange, ConfigValues, ListConfig, SetConfig
from fila_proto_zmq.events import ConfigDeleted, ConfigSet
from fila_worker.core.runtime import Draft

if TYPE_CHECKING:
    from fila_worker.core.effects import Call
    from fila_worker.core.jobs import Work
    from fila_worker.core.runtime import Changes, RuntimeConfig
    from fila_worker.core.state import State

KEYS_AT_ONCE: Final = 12
"""Keys whose sizes are added up for one unit of effort."""

COPIED_AT_ONCE: Final = 20
COMPARED_AT_ONCE: Final = 4
"""Keys that are copied, or that are decoded or compared, for one unit of effort."""

SHOW_COST: Final = 1
"""Effort to list a key."""

LOG_COST: Final = 5
MOVE_COST: Final = 2
"""Effort to write a key with its value to the log and to find out what it limits; and to write it to its place."""


def set_config(shard: "State", command: SetConfig, now_ms: int) -> ConfigChange:
    """Judge a change, make it durable and number it; :class:`InvalidConfigError` leaves everything as it was."""
    runtime = shard.runtime
    shard.jobs.charge(1 + len(runtime.values) // KEYS_AT_ONCE)
    changes = runtime_config.changes_for(command.key, command.value, runtime.values)
    existed = runtime_config.read(command.key, runtime.values) is not None
    if changes:
        put_config(shard, runtime.version + 1, changes, whole=False, now_ms=now_ms)
        shard.notes.append((ConfigDeleted if command.value is None else ConfigSet)(command.key, runtime.version))
    return ConfigChange(runtime.version, changes, existed)


def put_config(shard: "State", version: int, changes: "Changes", *, whole: bool, now_ms: int) -> None:
    """Take over a change that was judged; one that is older than what is here changes nothing.

    Nor does one of the same version, unless it is the ``whole`` and differs: one of the two is of a restored copy, and the router
    has decided which one holds.
    """
    runtime = shard.runtime
    assert not runtime.taking_over, "its owner puts one change after the other"
    if version < runtime.version or (version == runtime.version and not whole):
        return
    if len(changes) + whole * len(runtime.values) > shard.settings.limits.config_changes_max:
        runtime.taking_over = True
        shard.jobs.start_own(_take_over(shard, version, changes, whole, now_ms))
        return
    if version == runtime.version and changes == runtime.values:
        return
    if whole:
        changes = {key: None for key in runtime.values if key not in changes} | dict(changes)
    runtime.change(version, changes, shard.batch)
    _follow(shard, runtime_config.buckets_of(changes), now_ms)


def _follow(shard: "State", buckets: Iterable[str], now_ms: int) -> None:
    """A change holds now."""
    shard.to_be_synced = True
    shard.wake(shard.throttling.limit(buckets, shard.runtime.limits, now_ms), now_ms)
    shard.follow_quotas()


def list_config(shard: "State", call: "Call", command: ListConfig) -> "Work":
    """All keys that start with a prefix, as they are when it begins."""
    runtime, at_once = shard.runtime, shard.settings.limits.config_changes_at_once
    names = list(runtime.names.irange(runtime_config.stored_prefix(command.prefix)))
    values = runtime.values
    if len(names) > at_once:
        values = dict(values)
        yield (len(names) + len(values)) // COPIED_AT_ONCE
    shown: dict[str, str] = {}
    walk = runtime_config.walk(command.prefix, names, values)
    while some := list(islice(walk, at_once)):
        shown.update(each for each in some if each is not None)
        yield SHOW_COST * len(some)
    return ConfigValues(shown)


# --- in steps ----------------------------------------------------------------------------------------------------------


def _take_over(shard: "State", version: int, changes: "Changes", whole: bool, now_ms: int) -> "Work":
    """Take over a change of many keys: write it to the log, let it hold, then move it to its place."""
    runtime, at_once = shard.runtime, shard.settings.limits.config_changes_at_once
    yield 1 + len(changes) // COMPARED_AT_ONCE  # for their frame
    changes = yield from _differing(runtime, changes, whole, at_once)
    if not changes:
        runtime.change(version, changes, shard.batch)
        shard.to_be_synced = True
        runtime.taking_over = False
        return None
    draft, left = (yield from _draft(runtime)), iter(changes.items())
    pieces: list[Changes] = []
    buckets: dict[str, None] = {}
    while piece := dict(islice(left, at_once)):
        runtime.log(len(pieces), piece, shard.batch)
        buckets |= dict.fromkeys(draft.change(piece))
        pieces.append(piece)
        now_ms = yield LOG_COST * len(piece)
    runtime.hold(version, draft, shard.batch)
    _follow(shard, buckets, now_ms)
    yield from _move(shard, pieces)
    return None


def _differing(runtime: "RuntimeConfig", changes: "Changes", whole: bool, at_once: int) -> "Generator[int, int, Changes]":
    """What of a change is news."""
    values, news = runtime.values, dict[str, str | None]()
    here = ((key, changes.get(key)) for key in (values if whole else ()))
    left = chain(changes.items(), here)
    while some := list(islice(left, at_once * COMPARED_AT_ONCE)):
        news.update((key, value) for key, value in some if values.get(key) != value)
        yield 1 + len(some) // COMPARED_AT_ONCE
    return news


def _draft(runtime: "RuntimeConfig") -> "Generator[int, int, Draft]":
    """A copy of the config, to be changed."""
    values = dict(runtime.values)
    yield 1 + len(values) // COPIED_AT_ONCE
    names = SortedList(runtime.names)
    yield 1 + len(names) // COPIED_AT_ONCE
    limits = dict(runtime.limits)
    yield 1 + len(limits) // COPIED_AT_ONCE
    return Draft(values, names, limits)


def _move(shard: "State", pieces: "list[Changes]") -> "Work":
    """Move a change that holds from the log to its place."""
    for piece in pieces:
        shard.runtime.move(piece, shard.batch)
        yield MOVE_COST * len(piece)
    shard.runtime.end_log(shard.batch)
    shard.runtime.taking_over = False
    return None


def recover_config(shard: "State") -> "Generator[None, int | None, dict[str, int]]":
    """Read the config, and go on with a change that was in the log; returns the parked throttle keys, with the times until when."""
    runtime = shard.runtime
    parks, pieces = yield from runtime.recover(shard.store, shard.settings.limits.recovery_records_max)
    if runtime.taking_over:
        shard.jobs.start_own(_move(shard, pieces))
    elif pieces:
        runtime.end_log(shard.batch)
    return parks
