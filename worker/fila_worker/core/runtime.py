"""The runtime config as a shard has it: a durable copy of the whole, with its version.

Every shard has all of it, so that a hook, a throttle or a quota never waits for another process. Parked throttle keys are kept
here too: they are known everywhere and outlive a restart in the same way.

A change of many keys takes many turns. It is written to a *log* first, piece by piece. When all of it is there, one record says so, and
from then on it holds. Then the pieces are moved to their places. So a crash finds the old config or the new one, never some of each.
"""

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec
from sortedcontainers import SortedList

from fila_proto_zmq import runtime_config
from fila_worker.core.keys import FIRST, LAST, pack_u64, u64

if TYPE_CHECKING:
    from fila_worker.core.store import Batch, Families, Store

_VERSION: Final = b"config version"
_PARK: Final = b"park:"
_LOG: Final = b"config log:"
_LOG_END: Final = b"config log;"
_LOGGED: Final = b"config logged"
"""The record that says that all of a change is in the log."""

Changes: TypeAlias = Mapping[str, str | None]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, str | None]).decode


class RuntimeConfig:
    """Keys and values, and what follows from them."""

    def __init__(self, families: "Families") -> None:
        self._families = families
        self.values: dict[str, str] = {}
        self.names: SortedList[str] = SortedList()
        """The keys in order."""
        self.version = 0
        self.taking_over = False
        """Whether a change is under way that takes many turns: until it ends no other may begin."""
        self.limits: dict[str, runtime_config.Limit] = {}
        """Token buckets that have a limit, throttle keys and namespaces' quotas alike."""

    def get(self, key: str) -> str | None:
        """One value, in either spelling."""
        return runtime_config.read(key, self.values)

    def recover(self, store: "Store", at_once: int) -> Generator[None, int | None, tuple[dict[str, int], list[Changes]]]:
        """Read what is durable, so many records a step.

        Returns the parked throttle keys, with the times until when, and what of a change is in the log: all of it if
        ``taking_over``, else a part that never held.
        """
        families = self._families
        for number, (key, value) in enumerate(store.scan(FIRST, LAST, families.config), start=1):
            self.values[key.decode()] = value.decode()
            if number % at_once == 0:
                yield
        version = store.get(_VERSION, families.state)
        self.version = u64(version) if version else 0
        pieces = [_decode(piece) for _, piece in store.scan(_LOG, _LOG_END, families.state)]
        self.taking_over = store.get(_LOGGED, families.state) is not None
        if self.taking_over:
            for piece in pieces:
                _change(self.values, piece)
        self.names = SortedList(self.values)
        for start in range(0, len(self.names), at_once):
            _follow(self.limits, self.values, runtime_config.buckets_of(self.names[start : start + at_once]))
            yield
        parks = {key[len(_PARK) :].decode(): u64(value) for key, value in store.scan(_PARK, b"park;", families.state)}
        return parks, list(pieces)

    def change(self, version: int, changes: Changes, batch: "Batch") -> None:
        """Take over a change."""
        Draft(self.values, self.names, self.limits).change(changes)
        self.move(changes, batch)
        self.version = version
        batch.put(_VERSION, pack_u64(version), self._families.state)

    # --- in steps -----------------------------------------------------------------------------------------------------

    def log(self, number: int, piece: Changes, batch: "Batch") -> None:
        """Write one piece of a change to the log."""
        batch.put(_LOG + pack_u64(number), _encode(piece), self._families.state)

    def hold(self, version: int, draft: "Draft", batch: "Batch") -> None:
        """All of a change is in the log: it holds from now on."""
        self.values, self.names, self.limits, self.version = draft.values, draft.names, draft.limits, version
        batch.put(_LOGGED, b"", self._families.state)
        batch.put(_VERSION, pack_u64(version), self._families.state)

    def move(self, piece: Changes, batch: "Batch") -> None:
        """Write changes to their places."""
        family = self._families.config
        for key, value in piece.items():
            if value is None:
                batch.delete(key.encode(), family)
            else:
                batch.put(key.encode(), value.encode(), family)

    def end_log(self, batch: "Batch") -> None:
        """All of the log is in its places, or of no use."""
        batch.delete(_LOGGED, self._families.state)
        batch.delete_range(_LOG, _LOG_END, self._families.state)

    # --- parked keys --------------------------------------------------------------------------------------------------

    def save_park(self, key: str, until_ms: int, batch: "Batch") -> None:
        """Remember that a throttle key is parked."""
        batch.put(_PARK + key.encode(), pack_u64(until_ms), self._families.state)

    def forget_park(self, key: str, batch: "Batch") -> None:
        """A throttle key's time is up."""
        batch.delete(_PARK + key.encode(), self._families.state)


class Draft(NamedTuple):
    """A config that does not hold yet."""

    values: dict[str, str]
    names: "SortedList[str]"
    limits: dict[str, runtime_config.Limit]

    def change(self, piece: Changes) -> set[str]:
        """Take over some changes; returns the buckets that they may concern."""
        for key, value in piece.items():
            if value is None:
                self.names.discard(key)
            elif key not in self.values:
                self.names.add(key)
        buckets = runtime_config.buckets_of(piece)
        _change(self.values, piece)
        _follow(self.limits, self.values, buckets)
        return buckets


def _change(values: dict[str, str], changes: Changes) -> None:
    for key, value in changes.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value


def _follow(limits: dict[str, runtime_config.Limit], values: runtime_config.Config, buckets: set[str]) -> None:
    for bucket in buckets:
        limit = runtime_config.bucket_limit(bucket, values)
        if limit is None:
            limits.pop(bucket, None)
        else:
            limits[bucket] = limit
