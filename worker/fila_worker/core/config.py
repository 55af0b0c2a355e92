"""Changes of the runtime config: judged and numbered on shard 0, taken over by all.

The router tells every other shard of a change that shard 0 has made durable, and brings whoever was away up to date.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from fila_proto_zmq import runtime_config
from fila_proto_zmq.commands import ConfigChange, SetConfig
from fila_proto_zmq.events import ConfigDeleted, ConfigSet

if TYPE_CHECKING:
    from fila_worker.core.state import State

KEYS_AT_ONCE: Final = 12
"""Keys whose sizes are added up for one unit of effort."""


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


def put_config(shard: "State", version: int, changes: Mapping[str, str | None], *, whole: bool, now_ms: int) -> None:
    """Take over a change that was judged; one that is older than what is here changes nothing.

    Nor does one of the same version, unless it is the ``whole`` and differs: one of the two is of a restored copy, and the router
    has decided which one holds.
    """
    runtime = shard.runtime
    if version < runtime.version or (version == runtime.version and (not whole or changes == runtime.values)):
        return
    if whole:
        changes = {key: None for key in runtime.values if key not in changes} | dict(changes)
    runtime.change(version, changes, shard.batch)
    shard.to_be_synced = True
    shard.wake(shard.throttling.limit(runtime_config.buckets_of(changes), runtime.limits, now_ms), now_ms)
