"""A shard's copy of the runtime config: the whole config, durable, with its version.

Every shard has the whole config, so that a hook, a throttle or a quota never waits for another process. Parked throttle keys
are kept here, too, because every shard needs them and they are recovered in the same way.

A whole config of many keys comes in pages, in many turns. The pages are gathered in a *draft*, in memory and on disk, beside
the config in force. On disk each of the two has a place of its own, its *generation*. One record names the generation in
force. It changes with the last page, so after a crash either the old config or the new one is in force, never a mixture. The
remains of a draft are removed when the next one begins.

The shard that numbers the changes also remembers the latest of them (:class:`Edits`), written with the change itself.
Versions without these records ignore them.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from sortedcontainers import SortedSet

from fila_proto_zmq import runtime_config
from fila_proto_zmq.bucket_limits import BucketLimits
from fila_proto_zmq.commands import ConfigEdit
from fila_proto_zmq.partitions import Definitions, places_of, queue_with_places
from fila_proto_zmq.templates import Templates
from fila_worker.core.due_time import DueTime
from fila_worker.core.keys import LAST, pack_u64, range_of, u64
from fila_worker.core.settings import DEFAULTS

if TYPE_CHECKING:
    from fila_worker.core.settings import Limits
    from fila_worker.core.store import Families, Store, StoreBatch

VERSION: Final = b"config version"
GENERATION: Final = b"config generation"
PARK: Final = b"park:"
EDIT: Final = b"config edit:"

_LATER: Final = b"\0"
"""The byte before the number of a generation; both are a prefix of its keys. The keys of the first generation have no prefix:
no key of a config begins with a control character."""
_FIRST_KEY: Final = b" "

Changes = Mapping[str, str | None]


class FollowedLimits(NamedTuple):
    """The limits of throttle keys that a component has followed, and how many changes of concurrencies."""

    limits: BucketLimits
    changes: int


class RuntimeConfig:
    """The keys and values, and the limits made from them."""

    def __init__(self, families: "Families", limits: "Limits" = DEFAULTS) -> None:
        self._families = families
        self.edits = Edits(families, limits)
        self._place = _Place(0)
        self.version = 0
        self.limits = BucketLimits()
        """The config, and the limits of token buckets in it, of throttle keys and of namespaces' quotas alike."""
        self.throttle_keys = SortedSet[str]()
        """The throttle keys that have a limit."""
        self.templates = Templates()
        """The options of queues that the first enqueue creates."""
        self.definitions = Definitions()
        """The queues with several partitions."""
        self.draft: Draft | None = None
        self.timer = DueTime()
        """When a draft is given up because its next page did not come."""

    @property
    def values(self) -> dict[str, str]:
        """The stored keys."""
        return self.limits.values

    def get(self, key: str) -> str | None:
        """Return one value. The key may have either spelling."""
        return runtime_config.read(key, self.values)

    def concurrency(self, throttle_key: str) -> int | None:
        """Return how many messages with a throttle key may be leased at a time, in the whole cluster; None: any number.

        The places of a queue with partitions are those of a throttle key that no message has.
        """
        queue = queue_with_places(throttle_key)
        if queue is None:
            return self.limits.concurrency(throttle_key)
        definition = self.definitions.find(queue)
        return None if definition is None else definition.places

    @property
    def has_concurrency(self) -> bool:
        """Whether any throttle key, pattern or queue with partitions has places."""
        return self.limits.has_concurrency or self.definitions.have_places

    def limited(self, throttle_keys: Iterable[str]) -> list[str]:
        """Return those of the throttle keys that have a limit, sorted."""
        keys, covers = set(throttle_keys), self.limits.covers if self.limits.has_patterns else self.throttle_keys.__contains__
        return sorted(filter(covers, keys))

    def follow_concurrencies(self, followed: "FollowedLimits | None") -> "tuple[FollowedLimits, list[str] | None]":
        """Return the limits that are followed now, and the keys and patterns whose concurrency differs; None: any may."""
        limits = self.limits
        now = FollowedLimits(limits, limits.concurrency_changes)
        known = followed is not None and followed.limits is limits
        return now, limits.concurrencies_since(followed.changes) if followed is not None and known else None

    def recover(self, store: "Store", at_once: int) -> Generator[None, int | None, dict[str, int]]:
        """Read the durable config, ``at_once`` records a step. Return the parked throttle keys, with the end of each park."""
        families = self._families
        version, generation = store.get(VERSION, families.state), store.get(GENERATION, families.state)
        self.version = u64(version) if version else 0
        self._place = place = _Place(u64(generation) if generation else 0)
        records = iter(store.scan(*place.range, families.config))
        while page := {place.key_of(key): value.decode() for key, value in islice(records, at_once)}:
            self._take(page)
            yield
        yield from self.edits.recover(store, at_once)
        return {key[len(PARK) :].decode(): u64(value) for key, value in store.scan(*range_of(PARK), families.state)}

    def change(self, version: int, changes: Changes, batch: "StoreBatch") -> None:
        """Apply a change."""
        self._take(changes)
        self._place.write(changes, batch, self._families)
        self.version = version
        batch.put(VERSION, pack_u64(version), self._families.state)

    def _take(self, changes: Changes) -> None:
        _change(self.limits, self.throttle_keys, changes)
        self.templates.change(changes)
        self.definitions.change(changes)
        for key in changes:
            if key.startswith(runtime_config.PARTITIONED):
                self.limits.note_concurrency(places_of(key[len(runtime_config.PARTITIONED) :]))

    # --- a config in pages --------------------------------------------------------------------------------------------

    def begin(self, version: int, batch: "StoreBatch", now_ms: int) -> None:
        """Begin a draft for the pages of a whole config."""
        place = _Place(self._place.generation + 1)
        batch.delete_range(*place.range, self._families.config)
        self.draft = Draft(version, place, now_ms)

    def add(self, page: Changes, batch: "StoreBatch") -> None:
        """Add a page to the draft."""
        draft = self.draft
        assert draft is not None
        draft.pages += 1
        _change(draft.limits, draft.throttle_keys, page)
        draft.templates.change(page)
        draft.definitions.change(page)
        draft.place.write(page, batch, self._families)

    def hold(self, batch: "StoreBatch") -> None:
        """Put the draft in force: all pages are there."""
        draft, self.draft = self.draft, None
        assert draft is not None
        batch.delete_range(*self._place.range, self._families.config)
        self._place, self.version, self.limits = draft.place, draft.version, draft.limits
        self.templates, self.definitions, self.throttle_keys = draft.templates, draft.definitions, draft.throttle_keys
        batch.put(GENERATION, pack_u64(self._place.generation), self._families.state)
        batch.put(VERSION, pack_u64(self.version), self._families.state)

    # --- parked keys --------------------------------------------------------------------------------------------------

    def save_park(self, key: str, until_ms: int, batch: "StoreBatch") -> None:
        """Make the park of a throttle key durable."""
        batch.put(PARK + key.encode(), pack_u64(until_ms), self._families.state)

    def forget_park(self, key: str, batch: "StoreBatch") -> None:
        """Remove the park of a throttle key whose time is up."""
        batch.delete(PARK + key.encode(), self._families.state)


class Edits:
    """The latest changes: on disk, one record each, in the order of their versions. In memory are only their sizes."""

    def __init__(self, families: "Families", limits: "Limits") -> None:
        self._families = families
        self._limits = limits
        self._sizes: deque[tuple[int, int]] = deque()
        """The versions with the bytes of their records, the earliest first."""
        self._bytes = 0

    def recover(self, store: "Store", at_once: int) -> Generator[None, int | None, None]:
        """Read what is remembered, ``at_once`` records a step."""
        records = iter(stored_edits(store))
        while some := [(u64(key, len(EDIT)), len(value)) for key, value in islice(records, at_once)]:
            self._sizes.extend(some)
            self._bytes += sum(size for _, size in some)
            yield

    def add(self, edit: ConfigEdit, batch: "StoreBatch") -> None:
        """Remember a change, and forget the earliest ones if they are too many or too large."""
        data = encode_edit(edit)
        batch.put(EDIT + pack_u64(edit.version), data, self._families.state)
        self._sizes.append((edit.version, len(data)))
        self._bytes += len(data)
        limits = self._limits
        while len(self._sizes) > limits.config_edits_max or (
            self._bytes > limits.config_edits_bytes_max and len(self._sizes) > 1
        ):
            version, size = self._sizes.popleft()
            self._bytes -= size
            batch.delete(EDIT + pack_u64(version), self._families.state)

    def versions(self, before: int) -> Iterator[int]:
        """Yield the remembered versions, the latest first; only those before a version, unless that is 0."""
        for version, _ in reversed(self._sizes):
            if not before or version < before:
                yield version

    def find(self, version: int, store: "Store") -> ConfigEdit | None:
        """Return the change that made a version; None if it is forgotten."""
        return next(self.read(store, [version]), None) if version in self.versions(0) else None

    def read(self, store: "Store", versions: Iterable[int]) -> Iterator[ConfigEdit]:
        """Yield the changes of these versions, without those that are not there."""
        keys = [EDIT + pack_u64(version) for version in versions]
        for data in store.get_many(keys, self._families.state):
            if data is not None:
                yield decode_edit(data)


encode_edit: Final = msgspec.msgpack.Encoder().encode
decode_edit: Final = msgspec.msgpack.Decoder(ConfigEdit).decode


def stored_edits(store: "Store") -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of all changes that a shard remembers, keys and values."""
    return store.scan(*range_of(EDIT), store.families.state)


class Draft:
    """A whole config that is gathered page by page, and is not in force yet."""

    __slots__ = ("definitions", "heard_ms", "limits", "pages", "place", "templates", "throttle_keys", "version")

    def __init__(self, version: int, place: "_Place", now_ms: int) -> None:
        self.version = version
        self.place = place
        self.heard_ms = now_ms
        """When the latest page came."""
        self.pages = 0
        self.limits = BucketLimits()
        self.throttle_keys = SortedSet[str]()
        self.templates = Templates()
        self.definitions = Definitions()

    @property
    def values(self) -> dict[str, str]:
        """The keys so far."""
        return self.limits.values


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

    def write(self, changes: Changes, batch: "StoreBatch", families: "Families") -> None:
        """Write changes to this place."""
        family, front = families.config, self._front
        for key, value in changes.items():
            if value is None:
                batch.delete(front + key.encode(), family)
            else:
                batch.put(front + key.encode(), value.encode(), family)


def _change(limits: BucketLimits, throttle_keys: SortedSet[str], changes: Changes) -> None:
    limits.change(changes)
    for key in changes:
        throttle_key = runtime_config.throttle_key_of(key)
        if throttle_key is not None:
            has_some = any(each in limits.values for each in runtime_config.throttle_entries(throttle_key))
            (throttle_keys.add if has_some else throttle_keys.discard)(throttle_key)
