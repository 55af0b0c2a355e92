"""Changes of the runtime config: judged and numbered on shard 0, taken over by all.

The router tells every other shard of a change that shard 0 has made durable, and brings whoever was away up to date: with the whole
config, in pages if it is large. A shard that gathers them knows that its limits are old. Until the last page came it delivers nothing that
has throttle keys.
"""

from typing import TYPE_CHECKING, Final

from fila_proto_zmq import runtime_config
from fila_proto_zmq.commands import ConfigChange, ConfigValues, ListConfig, PutConfig, SetConfig
from fila_proto_zmq.events import ConfigDeleted, ConfigSet

if TYPE_CHECKING:
    from fila_worker.core.effects import Call
    from fila_worker.core.jobs import Work
    from fila_worker.core.runtime import Changes
    from fila_worker.core.state import State

KEYS_AT_ONCE: Final = 12
"""Keys whose sizes are added up for one unit of effort."""

PAGE_COST: Final = 5
"""Effort to write a key of a page, and to find out what it limits."""

COPIED_AT_ONCE: Final = 20
"""Keys that are copied for one unit of effort."""

LISTED_AT_ONCE: Final = 400
"""Keys that are looked at, or shown, in a step of a list."""

SHOW_COST: Final = 3
"""Effort to show a key: two stored ones may be put together."""

PAGES_WAIT_MS: Final = 5000
"""How long the next page of a config is waited for: pages come one right after the other, or the connection was lost."""


def set_config(shard: "State", command: SetConfig, now_ms: int) -> ConfigChange:
    """Judge a change, make it durable and number it; :class:`InvalidConfigError` leaves everything as it was."""
    runtime = shard.runtime
    shard.jobs.charge(1 + len(runtime.values) // KEYS_AT_ONCE)
    changes = runtime_config.changes_for(command.key, command.value, runtime.values)
    existed = runtime_config.read(command.key, runtime.values) is not None
    if changes:
        put_config(shard, PutConfig(runtime.version + 1, changes), now_ms)
        shard.notes.append((ConfigDeleted if command.value is None else ConfigSet)(command.key, runtime.version))
    return ConfigChange(runtime.version, changes, existed)


def put_config(shard: "State", put: PutConfig, now_ms: int) -> None:
    """Take over a change that was judged; one that is older than what is here changes nothing.

    Nor does one of the same version, unless it is the ``whole`` and differs: one of the two is of a restored copy, and the router
    has decided which one holds.
    """
    runtime = shard.runtime
    if put.page or put.more:
        _take_page(shard, put, now_ms)
        return
    if put.version < runtime.version or (put.version == runtime.version and (not put.whole or put.changes == runtime.values)):
        return
    changes = _differing(runtime.values, put.changes) if put.whole else put.changes
    runtime.change(put.version, changes, shard.batch)
    shard.to_be_synced = True
    shard.wake(shard.throttling.limit(runtime_config.buckets_of(changes), runtime.limits, now_ms), now_ms)


def _differing(values: dict[str, str], whole: "Changes") -> "Changes":
    """What changes if a whole config takes the place of another."""
    gone: Changes = {key: None for key in values if key not in whole}
    return {**gone, **{key: value for key, value in whole.items() if values.get(key) != value}}


# --- in pages ----------------------------------------------------------------------------------------------------------


def _take_page(shard: "State", put: PutConfig, now_ms: int) -> None:
    """Gather a page of a whole config. It holds with the last one; where one is missing it never does."""
    runtime = shard.runtime
    if put.page == 0 and put.version >= runtime.version:
        runtime.begin(put.version, shard.batch, now_ms)
        shard.throttling.hold(held=True)
    draft = runtime.draft
    if draft is None or (draft.version, draft.pages) != (put.version, put.page):
        drop_draft(shard)
        return
    shard.jobs.charge(PAGE_COST * len(put.changes))
    runtime.add(put.changes, shard.batch)
    draft.heard_ms = now_ms
    if not put.more:
        if draft.version > runtime.version or draft.values != runtime.values:
            runtime.hold(shard.batch)
            shard.to_be_synced = True
            shard.throttling.replace(runtime.limits)
        drop_draft(shard)


def drop_draft(shard: "State") -> None:
    """Go on with the config that holds."""
    shard.runtime.draft = None
    shard.throttling.hold(held=False)


def is_stuck(shard: "State", now_ms: int) -> bool:
    """Whether pages of a config are waited for that will not come."""
    draft = shard.runtime.draft
    return draft is not None and now_ms - draft.heard_ms >= PAGES_WAIT_MS


# --- lists -------------------------------------------------------------------------------------------------------------


def list_config(shard: "State", call: "Call", command: ListConfig) -> "Work":
    """All keys that start with a prefix, as they are when it begins."""
    values = shard.runtime.values
    if len(values) > LISTED_AT_ONCE:
        values = dict(values)
        yield len(values) // COPIED_AT_ONCE
    shown: dict[str, str] = {}
    for piece in runtime_config.selecting(command.prefix, values, LISTED_AT_ONCE):
        shown.update(piece)
        yield (SHOW_COST * len(piece) or LISTED_AT_ONCE) if len(values) > LISTED_AT_ONCE else 1
    return ConfigValues(shown)
