"""The runtime config as a shard has it: a durable copy of the whole, with its version.

Every shard has all of it, so that a hook, a throttle or a quota never waits for another process. Parked throttle keys are kept
here too: they are known everywhere and outlive a restart in the same way.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from fila_proto_zmq import runtime_config
from fila_worker.core.keys import FIRST, LAST, pack_u64, u64

if TYPE_CHECKING:
    from fila_worker.core.store import Batch, Families, Store

_VERSION: Final = b"config version"
_PARK: Final = b"park:"


class RuntimeConfig:
    """Keys and values, and what follows from them."""

    def __init__(self, families: "Families") -> None:
        self._families = families
        self.values: dict[str, str] = {}
        self.version = 0
        self.limits: dict[str, runtime_config.Limit] = {}
        """Token buckets that have a limit, throttle keys and namespaces' quotas alike."""

    def get(self, key: str) -> str | None:
        """One value, in either spelling."""
        return runtime_config.read(key, self.values)

    def recover(self, store: "Store") -> dict[str, int]:
        """Read what is durable; returns the parked throttle keys, with the times until when."""
        families = self._families
        self.values = {key.decode(): value.decode() for key, value in store.scan(FIRST, LAST, families.config)}
        version = store.get(_VERSION, families.state)
        self.version = u64(version) if version else 0
        self.limits = dict(runtime_config.all_limits(self.values))
        return {key[len(_PARK) :].decode(): u64(value) for key, value in store.scan(_PARK, b"park;", families.state)}

    def change(self, version: int, changes: Mapping[str, str | None], batch: "Batch") -> None:
        """Take over a change."""
        for key, value in changes.items():
            if value is None:
                self.values.pop(key, None)
                batch.delete(key.encode(), self._families.config)
            else:
                self.values[key] = value
                batch.put(key.encode(), value.encode(), self._families.config)
        self.version = version
        batch.put(_VERSION, pack_u64(version), self._families.state)
        self._follow(runtime_config.buckets_of(changes))

    def _follow(self, buckets: set[str]) -> None:
        for bucket in buckets:
            limit = runtime_config.bucket_limit(bucket, self.values)
            if limit is None:
                self.limits.pop(bucket, None)
            else:
                self.limits[bucket] = limit

    def save_park(self, key: str, until_ms: int, batch: "Batch") -> None:
        """Remember that a throttle key is parked."""
        batch.put(_PARK + key.encode(), pack_u64(until_ms), self._families.state)

    def forget_park(self, key: str, batch: "Batch") -> None:
        """A throttle key's time is up."""
        batch.delete(_PARK + key.encode(), self._families.state)
