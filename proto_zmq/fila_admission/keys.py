"""API keys: whose request it is, and whether the key's permissions cover it.

A secret has 256 random bits, so a plain hash of it can't be reversed, and a key is found by its hash: how long that takes
says nothing about other secrets. A key is refused before anything else is examined, so a refusal does not show what exists.
"""

import base64
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, Final

from fila_admission.permissions import ADMIN, EVERYTHING, KINDS, NAMING, NeededPermission, Permissions, named_queues, need_of
from fila_proto_zmq.commands import ApiKey, KeyView
from fila_proto_zmq.errors import InvalidArgumentError, PermissionDeniedError, UnauthenticatedError
from fila_proto_zmq.names import whole_queue

ALGORITHM: Final = "sha256"
SECRET_BYTES: Final = 32
SECRET_PREFIX: Final = "fila_"
"""The beginning of each secret, so that people and scanners recognise it."""


def make_secret(entropy: Callable[[int], bytes]) -> str:
    """Return a new secret of 256 bits, as text."""
    return SECRET_PREFIX + base64.urlsafe_b64encode(entropy(SECRET_BYTES)).rstrip(b"=").decode()


def digest_of(secret: str) -> bytes:
    """Return what is kept of a secret."""
    return sha256(secret.encode()).digest()


class Key:
    """An API key. ``ended`` holds for all that have the object: sessions, connections. A key that has ended stays so."""

    __slots__ = ("ended", "permissions", "record")

    def __init__(self, record: ApiKey) -> None:
        self.record = record
        self.permissions = Permissions(record.allow)
        self.ended = False

    @property
    def name(self) -> str:
        """Its name for people."""
        return self.record.name

    @property
    def digest(self) -> bytes:
        """The hash of its secret, by which it is found."""
        return self.record.digest

    def update(self, record: ApiKey) -> None:
        """Take over what the key may do and when it ends. Name and secret stay."""
        self.record, self.permissions = record, Permissions(record.allow)

    def view(self) -> KeyView:
        """Return what people may see of it."""
        record = self.record
        return KeyView(record.name, list(self.permissions.texts), record.created_ms, record.expires_ms, record.used_ms)

    def end_in_time(self, wall_ms: int) -> bool:
        """Note whether its time is over. Return whether it has ended, so or by being revoked. ``wall_ms``: Unix ms."""
        self.ended = self.ended or 0 < self.record.expires_ms <= wall_ms
        return self.ended

    def check_valid(self, wall_ms: int) -> None:
        """Raise :class:`UnauthenticatedError` if it has ended."""
        if self.end_in_time(wall_ms):
            how = "has expired" if 0 < self.record.expires_ms <= wall_ms else "was revoked"
            raise UnauthenticatedError(f"the API key {self.name!r} {how}: ask an administrator for another one")

    def check(self, opcode: int, queue: str, body: Any, wall_ms: int) -> None:
        """Raise unless it allows a request. ``queue``: the routing key; ``body``: read only if it may name other queues."""
        self.check_valid(wall_ms)
        need, permissions = need_of(opcode), self.permissions
        if need.value in KINDS:
            if not permissions.allow(need.value, queue):
                raise self.denied(f"{need.value}:{whole_queue(queue)}")
            if opcode in NAMING:
                self._check_named(opcode, queue, body)
        elif need is NeededPermission.KNOW:
            if not permissions.know(queue):
                raise self.denied(f"any permission on {whole_queue(queue)!r}")
        elif need is NeededPermission.KNOW_ALL:
            if not permissions.know_all():
                raise self.denied(need.value)
        elif need is NeededPermission.GOVERN_SOME:
            if not permissions.allow_some(ADMIN):
                raise self.denied(f"{ADMIN}:PATTERN")
        elif need is not NeededPermission.NOTHING and not permissions.govern(EVERYTHING):
            raise self.denied(need.value)

    def _check_named(self, opcode: int, queue: str, body: Any) -> None:
        for naming, name in named_queues(opcode, bytes(body)):
            if not self.permissions.allow(naming.needs, name):
                raise self.denied(f"{naming.needs}:{whole_queue(name)}, for {naming.use.format(repr(whole_queue(queue)))}")

    def denied(self, needed: str) -> PermissionDeniedError:
        """Return the error for a lacking permission."""
        return PermissionDeniedError(f"the API key {self.name!r} does not have {needed}", details={"key": self.name})


class KeyRing:
    """The keys of a cluster. Invariant: each key is in both indexes; names and secrets are unique."""

    def __init__(self, records: Iterable[ApiKey] = ()) -> None:
        self._by_name: dict[str, Key] = {}
        self._by_digest: dict[bytes, Key] = {}
        for record in records:
            self.add(record)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Key | None:
        """Return the key of this name."""
        return self._by_name.get(name)

    def add(self, record: ApiKey) -> Key:
        """Add a key. Raise :class:`InvalidArgumentError` if its name is taken, or for what is no permission."""
        if record.name in self._by_name:
            raise InvalidArgumentError(
                f"there is an API key {record.name!r} already: choose another name, or revoke it first"
            )
        key = Key(record)
        self._by_name[key.name] = self._by_digest[key.digest] = key
        return key

    def remove(self, name: str) -> None:
        """Remove a key and revoke it."""
        key = self._by_name.pop(name)
        del self._by_digest[key.digest]
        key.ended = True

    def replace(self, records: Iterable[ApiKey]) -> None:
        """Take over all keys of another ring. Keys that are not in it are revoked here."""
        earlier = self._by_digest
        self._by_name, self._by_digest = {}, {}
        for record in records:
            known = earlier.pop(record.digest, None)
            if known is None:
                self.add(record)
            else:
                known.update(record)
                self._by_name[known.name] = self._by_digest[known.digest] = known
        for key in earlier.values():
            key.ended = True

    def find(self, secret: str, wall_ms: int) -> Key:
        """Return the valid key with this secret, else raise :class:`UnauthenticatedError`."""
        if not secret:
            raise UnauthenticatedError("this cluster needs an API key: pass api_key=, or set FILA_API_KEY")
        key = self._by_digest.get(digest_of(secret))
        if key is None:
            raise UnauthenticatedError("the API key is not one of this cluster: it is mistyped, or was revoked")
        key.check_valid(wall_ms)
        return key

    def check(self) -> None:
        """Check the invariants, for tests."""
        assert {id(key) for key in self._by_name.values()} == {id(key) for key in self._by_digest.values()}
        assert all(name == key.name and (not key.ended or key.record.expires_ms) for name, key in self._by_name.items())
        assert all(digest == key.digest for digest, key in self._by_digest.items())


class LoginAttempts:
    """How many wrong API keys an address may still try, at the router or at the observer.

    Each address has a token bucket, kept as in the generic cell rate algorithm (ITU-T I.371): one number, the time at which
    the bucket is full again. A refused attempt takes nothing, so an address that tries on is answered at the rate.

    Invariant: at most ``addresses_max`` addresses are remembered. Beyond, the one whose last attempt is longest ago is
    forgotten: its bucket is full.
    """

    def __init__(self, attempts_max: int, refill_ms: int, addresses_max: int) -> None:
        """``attempts_max``: those of one address at once. It gets one more every ``refill_ms``."""
        self._spent_ms_max = (attempts_max - 1) * refill_ms
        """The time until a bucket is full, if one attempt is left in it."""
        self._refill_ms = refill_ms
        self._addresses_max = addresses_max
        self._full_at_ms: OrderedDict[str, int] = OrderedDict()
        """By address, the one with the latest attempt last."""

    def __len__(self) -> int:
        return len(self._full_at_ms)

    def take(self, address: str, now_ms: int) -> bool:
        """Take an attempt of an address. Return whether it had one left. ``now_ms`` never goes back."""
        full_at_ms = max(now_ms, self._full_at_ms.pop(address, now_ms))
        has_one = full_at_ms - now_ms <= self._spent_ms_max
        self._full_at_ms[address] = full_at_ms + self._refill_ms if has_one else full_at_ms
        if len(self._full_at_ms) > self._addresses_max:
            self._forget_oldest()
        return has_one

    def give_back(self, address: str, now_ms: int) -> None:
        """Give an attempt back to an address: its key is not known to be wrong."""
        full_at_ms = self._full_at_ms.get(address, now_ms) - self._refill_ms
        if full_at_ms > now_ms:
            self._full_at_ms[address] = full_at_ms
        else:
            self._full_at_ms.pop(address, None)

    def _forget_oldest(self) -> None:
        """Make room. The simulation counts these calls."""
        self._full_at_ms.popitem(last=False)
