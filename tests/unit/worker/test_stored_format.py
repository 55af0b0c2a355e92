"""A shard reads what the present format stores: bytes that were written once, and are never written anew for a test."""

import json
from pathlib import Path

from fila_proto_zmq.commands import ConfigHistory, ListConfigHistory, SetConfig
from fila_worker.core.recovery import FORMAT
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.shard import ShardHarness


def written(number: int) -> MemoryStore:
    """The shard that a version with this format stored."""
    store = MemoryStore()
    families = json.loads((Path(__file__).parent / f"format_{number}.json").read_text())
    for name, items in families.items():
        getattr(store.families, name).update({bytes.fromhex(key): bytes.fromhex(value) for key, value in items})
    return store


def test_the_present_format_has_its_bytes_and_is_read():
    shard = ShardHarness(written(FORMAT))
    shard.shard.check()
    assert shard.counts() == (1, 1, 1)
    assert [each.error for each in shard.receive(9, "q.dlq")] == ["boom"]
    known = shard.enqueue(b"once", dedup_id="d1")
    assert shard.counts() == (1, 1, 1), known
    shard.pass_time(60_000)
    assert sorted(each.payload for each in shard.receive(9))[-1] == b"once"


def test_what_was_stored_before_changes_were_remembered_has_an_empty_history_that_grows():
    shard = ShardHarness(written(3))
    assert shard.ask(ListConfigHistory()) == ConfigHistory([])
    version = shard.shard.set_config(SetConfig("color", "red"), shard.now_ms).version
    shard.turn()
    shard.restart()
    history = shard.ask(ListConfigHistory())
    assert isinstance(history, ConfigHistory)
    assert [edit.version for edit in history.edits] == [version]
