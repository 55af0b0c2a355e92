"""API keys in the log of shard 0: they survive a restart, and damage is found."""

import pytest

from fila_proto_zmq.commands import ApiKey, Done, FetchKeys, StoredKeys, StoreKeys
from fila_worker.core.manage.api_keys import API_KEYS
from fila_worker.core.store import DamageError
from tests.support.shard.shard import ShardHarness

KEY = ApiKey("shop", "sha256", b"digest", ["produce:*"], 1)


def test_they_are_there_after_a_restart():
    shard = ShardHarness()
    assert shard.shard.keep_keys(StoreKeys(1, [])) == Done()
    assert shard.shard.keep_keys(StoreKeys(2, [KEY])) == Done()
    shard.turn()
    shard.restart()
    assert shard.shard.keys_version == 2
    assert shard.shard.keep_keys(FetchKeys()) == StoredKeys(2, [KEY])


def test_a_record_that_cannot_be_read_is_damage():
    shard = ShardHarness()
    store = shard.shard.store
    batch = store.new_batch()
    batch.put(API_KEYS, b"\xc1", store.families.state)
    store.commit(batch)
    with pytest.raises(DamageError, match="API keys"):
        shard.restart()
