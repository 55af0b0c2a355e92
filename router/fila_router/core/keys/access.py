"""The API keys of a cluster with authentication, and the commands that change them.

Without authentication a router has no keys, and every client may do everything. Only the router changes the keys. Workers get
copies, for the clients that are connected to them directly. A change is confirmed once the caller has stored it
(:attr:`Access.unsaved`). Several routers store it in the log of shard 0 before that (:mod:`key_replication`).
"""

import re
from collections.abc import Callable, Iterable
from copy import copy
from typing import Final

from fila_admission.keys import ALGORITHM, Key, KeyRing, LoginAttempts, digest_of, make_secret
from fila_admission.permissions import Permissions
from fila_proto_zmq import commands as wire
from fila_proto_zmq.errors import InvalidArgumentError, OverloadedError, UnauthenticatedError
from fila_proto_zmq.events import ApiKeyCreated, ApiKeyGranted, ApiKeyRevoked, Event
from fila_router.core.limits import RouterLimits

KEYS_PAGE: Final = 500
"""Keys in one answer."""

USED_MS: Final = 60_000
"""The precision of the time at which a key was last used."""

_VERSION_BYTES: Final = 7

NAME_MAX: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9._@-]+", re.ASCII)


def outlives(expires_ms: int, maker_ms: int) -> bool:
    """Return whether a key with the first end is valid for longer than one with the second. 0: no end."""
    return bool(maker_ms) and (not expires_ms or expires_ms > maker_ms)


class Access:
    """The API keys.

    ``unsaved``: whether the stored keys lack a change. ``internal``: the keys of the cluster's own processes. They end with
    the cluster, and are not listed.
    """

    def __init__(
        self,
        records: Iterable[wire.ApiKey],
        internal: Iterable[wire.ApiKey],
        entropy: Callable[[int], bytes],
        limits: RouterLimits,
        version: int = 0,
    ) -> None:
        """``version``: that of the keys in the log of shard 0, which several routers share; 0: they are not from there."""
        self.version = version
        self.unsaved = False
        self.changed = False
        """Whether workers lack a change."""
        self.notes: list[Event] = []
        """Events for the log."""
        self.attempts = LoginAttempts(limits.failures_max, limits.failure_ms, limits.addresses_max)
        """Greetings with wrong keys that may be answered."""
        self._entropy = entropy
        self._copied = self._new_version()
        self._limits = limits
        self._ring = KeyRing(records)
        self._internal = KeyRing(internal)
        self._used_ms = 0

    # --- greetings ----------------------------------------------------------------------------------------------------

    def greet(self, secret: str, wall_ms: int) -> Key:
        """Return the valid key with this secret, else raise :class:`UnauthenticatedError`."""
        try:
            return self._internal.find(secret, wall_ms)
        except UnauthenticatedError:
            key = self._ring.find(secret, wall_ms)
        if wall_ms - key.record.used_ms >= USED_MS:
            key.record.used_ms = wall_ms
            self._used_ms = self._used_ms or wall_ms
        return key

    def is_internal(self, key: Key) -> bool:
        """Return whether a key is of the cluster's own processes."""
        return self._internal.get(key.name) is key

    def tick(self, wall_ms: int) -> None:
        """Store the times of use once a minute."""
        if self._used_ms and wall_ms - self._used_ms >= USED_MS:
            self._used_ms, self.unsaved = 0, True

    # --- keys ---------------------------------------------------------------------------------------------------------

    def records(self) -> list[wire.ApiKey]:
        """Return all keys as they are stored, and note that they are."""
        self.unsaved = False
        return [key.record for key in self._ring]

    def copies(self) -> wire.PutKeys:
        """Return all keys for workers."""
        return wire.PutKeys(
            [key.record for key in self._ring], self._copied, [key.record for key in self._internal], self.version
        )

    def is_current(self, version: int) -> bool:
        """Return whether a worker that has this version has every change."""
        return version == self._copied

    def _new_version(self) -> int:
        """Return a number that no other version has, not even one of an earlier run of the router."""
        return int.from_bytes(self._entropy(_VERSION_BYTES), "big")

    def draft(self) -> "Access":
        """Return a copy of the keys, to try a change on."""
        return Access((copy(key.record) for key in self._ring), (), self._entropy, self._limits)

    def follow(self, version: int, records: Iterable[wire.ApiKey]) -> None:
        """Take over the keys in the log of shard 0. Those that are not among them have ended."""
        used = {key.digest: key.record.used_ms for key in self._ring}
        followed = [copy(record) for record in records]
        for record in followed:
            record.used_ms = max(record.used_ms, used.get(record.digest, 0))
        self._ring.replace(followed)
        self.version, self.unsaved = version, True
        self._copied = self._new_version()

    def obey(self, asking: Key, command: wire.Command, wall_ms: int) -> wire.Reply:
        """Carry out a command about keys. ``asking`` may manage keys whose permissions it governs."""
        if isinstance(command, wire.CreateKey):
            return self._create(asking, command, wall_ms)
        if isinstance(command, wire.ListKeys):
            return self._list(asking, command)
        if isinstance(command, wire.GrantKey):
            return self._grant(asking, command)
        assert isinstance(command, wire.RevokeKey)
        self._ring.remove(self._managed(asking, command.name).name)
        return self._done(ApiKeyRevoked(command.name, asking.name))

    def _create(self, asking: Key, command: wire.CreateKey, wall_ms: int) -> wire.KeyMade:
        name = command.name
        if not 1 <= len(name) <= NAME_MAX or not _NAME.fullmatch(name):
            raise InvalidArgumentError(f"bad key name {name!r}: use 1 to {NAME_MAX} of [A-Za-z0-9._@-]")
        if command.expires_ms and command.expires_ms <= wall_ms:
            raise InvalidArgumentError("the key would have expired already: choose a later time, or none")
        self._check_governs(asking, command.allow)
        expires_ms = command.expires_ms or asking.record.expires_ms
        if outlives(expires_ms, asking.record.expires_ms):
            raise InvalidArgumentError(
                f"the key would outlive {asking.name!r}, which makes it and ends in "
                f"{(asking.record.expires_ms - wall_ms) / 1000:.0f} s: "
                "choose an earlier end, or none to let both end together"
            )
        if len(self._ring) >= self._limits.keys_max:
            raise OverloadedError(f"there are {len(self._ring)} API keys, the most that are kept: revoke some first")
        secret = make_secret(self._entropy)
        allow = Permissions(command.allow).texts
        key = self._ring.add(wire.ApiKey(name, ALGORITHM, digest_of(secret), allow, wall_ms, expires_ms))
        self._done(ApiKeyCreated(name, asking.name, allow, expires_ms))
        return wire.KeyMade(secret, key.view())

    def _grant(self, asking: Key, command: wire.GrantKey) -> wire.Done:
        key = self._managed(asking, command.name)
        self._check_governs(asking, command.allow)
        new = set(command.allow) - set(key.permissions.texts)
        if new and outlives(key.record.expires_ms, asking.record.expires_ms):
            raise InvalidArgumentError(f"the API key {key.name!r} outlives {asking.name!r}, which can't give it permissions")
        record = key.record
        allow = Permissions([*record.allow, *command.allow]).texts
        key.update(
            wire.ApiKey(key.name, record.algorithm, key.digest, allow, record.created_ms, record.expires_ms, record.used_ms)
        )
        return self._done(ApiKeyGranted(key.name, asking.name, allow))

    def _list(self, asking: Key, command: wire.ListKeys) -> wire.KeyList:
        if command.name is not None:
            return wire.KeyList([self._managed(asking, command.name).view()])
        govern_all = asking.permissions.govern_all
        names = sorted(key.name for key in self._ring if key.name > command.after and govern_all(key.permissions.texts))
        shown = [key.view() for key in map(self._ring.get, names[:KEYS_PAGE]) if key is not None]
        return wire.KeyList(shown, len(names) > KEYS_PAGE)

    def _managed(self, asking: Key, name: str) -> Key:
        """Return the key of a name, if the asking key may manage it."""
        key = self._ring.get(name)
        if key is None or not asking.permissions.govern_all(key.permissions.texts):
            raise InvalidArgumentError(f"there is no API key {name!r} among those that {asking.name!r} may manage")
        return key

    def _check_governs(self, asking: Key, allow: Iterable[str]) -> None:
        for text in allow:
            if not asking.permissions.govern_all([text]):
                raise asking.denied(f"admin permission on all queues of {text!r}, which it wants to give away")

    def _done(self, note: Event) -> wire.Done:
        self.unsaved = self.changed = True
        self._copied = self._new_version()
        self.notes.append(note)
        return wire.Done()

    def check(self) -> None:
        """Check the invariants, for tests."""
        self._ring.check()
        self._internal.check()
