"""The API keys of a cluster with several routers, in the log of shard 0.

Routers change them, and all of them follow. The shard only keeps them, with a version, in one record: they are few, and are
seldom read.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from fila_proto_zmq.commands import (
    Done,
    StoredKeys,
    StoreKeys,
)
from fila_proto_zmq.errors import InvalidArgumentError
from fila_worker.core.model.component import Component, Steps
from fila_worker.core.store import DamageError

if TYPE_CHECKING:
    from fila_worker.core.model.state import State


API_KEYS: Final = b"api keys"


encode_keys: Final = msgspec.msgpack.Encoder().encode


decode_keys: Final = msgspec.msgpack.Decoder(StoredKeys).decode


class KeysVersion:
    """The version of the kept API keys; 0: none."""

    def __init__(self) -> None:
        self.number = 0


def store_keys(state: "State", command: StoreKeys) -> Done:
    """Keep the API keys of the next version. Raise :class:`InvalidArgumentError` for another version."""
    version = state.part(KeysVersion)
    if command.version != version.number + 1:
        raise InvalidArgumentError(
            f"version {command.version} of the API keys does not follow version {version.number}: fetch that one first",
            details={"version": version.number},
        )
    version.number = command.version
    state.batch.put(API_KEYS, encode_keys(StoredKeys(command.version, command.keys)), state.store.families.state)
    state.to_be_synced = True
    return Done()


def fetch_keys(state: "State") -> StoredKeys:
    """Return the API keys. Raise :class:`DamageError`."""
    state.settle_writes()
    data = state.store.get(API_KEYS, state.store.families.state)
    return StoredKeys() if data is None else _read(data)


def _read(data: bytes) -> StoredKeys:
    try:
        return decode_keys(data)
    except msgspec.MsgspecError as cause:
        raise DamageError(f"the record of the API keys can't be read: {cause}") from cause


class StoredApiKeys(Component):
    """The API keys in the log of shard 0."""

    def __init__(self, state: "State") -> None:
        super().__init__(state)
        state.keep(KeysVersion())

    def recover(self, now_ms: int) -> Steps:
        """Read which version is kept."""
        self.state.part(KeysVersion).number = fetch_keys(self.state).version
        yield
