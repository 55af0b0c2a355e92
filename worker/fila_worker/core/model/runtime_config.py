"""A shard's copy of the runtime config: the whole config, durable, with its version.

Every shard has the whole config, so that a hook, a throttle or a quota never waits for another process. Parked throttle keys
are kept here too, because every shard knows them and they are recovered after a restart in the same way.

A whole config of many keys comes in pages, in many turns. The pages are gathered in a *draft*, in memory and on disk, beside
the config in force. On disk each of the two has a place of its own, its *generation*. One record names the generation in
force. It changes with the last page, so after a crash either the old config or the new one is in force, never a mixture. The
remains of a draft are removed when the next one begins.
"""

from collections.abc import Generator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from fila_proto_zmq import runtime_config
from fila_worker.core.keys import LAST, pack_u64, u64
from fila_worker.core.timer import Timer

if TYPE_CHECKING:
    from fila_worker.core.store import Batch, Families, Store

_VERSION: Final = b"config version"
_GENERATION: Final = b"config generation"
_PARK: Final = b"park:"

_LATER: Final = b"\0"
"""The byte before the number of a generation; both are a prefix of its keys. The keys of the first generation have no prefix:
no key of a config begins with a control character."""
_FIRST_KEY: Final = b" "

Changes = Mapping[str, str | None]


class RuntimeConfig:
    """The keys and values, and the limits made from them."""

    def __init__(self, families: "Families") -> None:
        self._families = families
        self._place = _Place(0)
        self.values: dict[str, str] = {}
        self.version = 0
        self.limits: dict[str, runtime_config.Limit] = {}
        """The limits of token buckets, of throttle keys and of namespaces' quotas alike."""
        self.draft: Draft | None = None
        self.timer = Timer()
        """When a draft is given up because its next page did not come."""

    def get(self, key: str) -> str | None:
        """Return one value. The key may have either spelling."""
        return runtime_config.read(key, self.values)

    def recover(self, store: "Store", at_once: int) -> Generator[None, int | None, dict[str, int]]:
        """Read the durable config, ``at_once`` records a step. Return the parked throttle keys, with the end of each park."""
        families = self._families
        version, generation = store.get(_VERSION, families.state), store.get(_GENERATION, families.state)
        self.version = u64(version) if version else 0
        self._place = place = _Place(u64(generation) if generation else 0)
        records = iter(store.scan(*place.range, families.config))
        while page := {place.key_of(key): value.decode() for key, value in islice(records, at_once)}:
            _change(self.values, self.limits, page)
            yield
        return {key[len(_PARK) :].decode(): u64(value) for key, value in store.scan(_PARK, b"park;", families.state)}

    def change(self, version: int, changes: Changes, batch: "Batch") -> None:
        """Apply a change."""
        _change(self.values, self.limits, changes)
        self._place.write(changes, batch, self._families)
        self.version = version
        batch.put(_VERSION, pack_u64(version), self._families.state)

    # --- a config in pages --------------------------------------------------------------------------------------------

    def begin(self, version: int, batch: "Batch", now_ms: int) -> None:
        """Begin a draft for the pages of a whole config."""
        place = _Place(self._place.generation + 1)
        batch.delete_range(*place.range, self._families.config)
        self.draft = Draft(version, place, now_ms)

    def add(self, page: Changes, batch: "Batch") -> None:
        """Add a page to the draft."""
        draft = self.draft
        assert draft is not None
        draft.pages += 1
        _change(draft.values, draft.limits, page)
        draft.place.write(page, batch, self._families)

    def hold(self, batch: "Batch") -> None:
        """Put the draft in force: all pages are there."""
        draft, self.draft = self.draft, None
        assert draft is not None
        batch.delete_range(*self._place.range, self._families.config)
        self._place, self.version, self.values, self.limits = draft.place, draft.version, draft.values, draft.limits
        batch.put(_GENERATION, pack_u64(self._place.generation), self._families.state)
        batch.put(_VERSION, pack_u64(self.version), self._families.state)

    # --- parked keys --------------------------------------------------------------------------------------------------

    def save_park(self, key: str, until_ms: int, batch: "Batch") -> None:
        """Make the park of a throttle key durable."""
        batch.put(_PARK + key.encode(), pack_u64(until_ms), self._families.state)

    def forget_park(self, key: str, batch: "Batch") -> None:
        """Remove the park of a throttle key whose time is up."""
        batch.delete(_PARK + key.encode(), self._families.state)


class Draft:
    """A whole config that is gathered page by page, and is not in force yet."""

    __slots__ = ("heard_ms", "limits", "pages", "place", "values", "version")

    def __init__(self, version: int, place: "_Place", now_ms: int) -> None:
        self.version = version
        self.place = place
        self.heard_ms = now_ms
        """When the latest page came."""
        self.pages = 0
        self.values: dict[str, str] = {}
        self.limits: dict[str, runtime_config.Limit] = {}


class _Place:
    """The place of a generation of the config on disk."""

    __slots__ = ("_front", "generation")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self._front = _LATER + pack_u64(generation) if generation else b""

    @property
    def range(self) -> tuple[bytes, bytes]:
        """Return the first key, and the end of its keys."""
        return (self._front, _LATER + pack_u64(self.generation + 1)) if self.generation else (_FIRST_KEY, LAST)

    def key_of(self, stored: bytes) -> str:
        """Return the key of a record."""
        return stored[len(self._front) :].decode()

    def write(self, changes: Changes, batch: "Batch", families: "Families") -> None:
        """Write changes to this place."""
        family, front = families.config, self._front
        for key, value in changes.items():
            if value is None:
                batch.delete(front + key.encode(), family)
            else:
                batch.put(front + key.encode(), value.encode(), family)


def _change(values: dict[str, str], limits: dict[str, runtime_config.Limit], changes: Changes) -> None:
    for key, value in changes.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    for bucket in runtime_config.buckets_of(changes):
        limit = runtime_config.bucket_limit(bucket, values)
        if limit is None:
            limits.pop(bucket, None)
        else:
            limits[bucket] = limit
