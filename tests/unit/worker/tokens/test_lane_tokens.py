"""What changes for many sets of throttle keys holds at once, and reaches them over several turns."""

from collections import Counter

import pytest

from fila_proto_zmq.commands import Enqueue, Grant, Grants, Receive, SetConfig
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.model import token_client
from fila_worker.core.model.lane_tokens import TOKEN, LaneTokens
from fila_worker.core.settings import ShardSettings
from tests.support.shard.shard import ShardHarness

PATIENT = ShardSettings(consumer_timeout_ms=1 << 40)
SETS = 35


def sets_of_throttle_keys(monkeypatch: pytest.MonkeyPatch) -> tuple[ShardHarness, Counter[int]]:
    """A shard whose messages have many sets of throttle keys, all with "t"; and which of its throttles followed, turn by turn."""
    monkeypatch.setattr(token_client, "SETTLED_MAX", 10)
    monkeypatch.setattr(token_client, "FOLLOWING_MIN", 5)
    shard = ShardHarness(settings=PATIENT)
    shard.create()
    for number in range(SETS):
        shard.ask(Enqueue([seal_envelope(b"")] * 2, throttle_keys=[[f"set-{number}", "t"]]))
    settle(shard)
    followed = Counter[int]()
    follow, turn = shard.shard.token_client._follow, shard.turn

    def turn_and_count() -> None:
        followed[len(followed)] = 0
        turn()

    def follow_and_count(each: LaneTokens) -> None:
        followed[len(followed) - 1] += 1
        follow(each)

    monkeypatch.setattr(shard, "turn", turn_and_count)
    monkeypatch.setattr(shard.shard.token_client, "_follow", follow_and_count)
    return shard, followed


def settle(shard: ShardHarness) -> None:
    while shard.shard.next_due(shard.now_ms) == 0:
        shard.turn()


def test_a_limit_that_changes_holds_at_once_and_many_sets_of_throttle_keys_follow_over_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shard, followed = sets_of_throttle_keys(monkeypatch)
    shard.shard.set_config(SetConfig("throttle:t:rate", "1"), shard.now_ms)
    assert followed.total() <= 10
    waiter = shard.begin(Receive(99, 60_000), client=b"waiter")
    settle(shard)
    assert shard.shard.queues["q"].in_flight == 0, "the limit holds for all"
    followed.clear()
    shard.shard.set_config(SetConfig("throttle:t:rate", None), shard.now_ms)
    settle(shard)
    assert followed.total() == SETS
    assert max(followed.values()) <= 10 + 1  # one that is delivered from follows before its time
    first = len(shard.late[waiter].batches[0].records)  # type: ignore[union-attr]
    assert first + len(shard.receive(99)) == 2 * SETS


def test_tokens_that_were_granted_under_another_limit_are_not_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, _ = sets_of_throttle_keys(monkeypatch)
    shard.shard.set_config(SetConfig("throttle:t:rate", "1000"), shard.now_ms)
    settle(shard)
    shard.begin(Receive(1, 60_000), client=b"waiter")
    settle(shard)
    asked = [want for post in shard.posted for want in post.command.wants]  # type: ignore[attr-defined]
    wants = {tuple(want.keys): want for want in asked if want.least}
    assert len(wants) == SETS
    grants = [Grant(list(keys), 2 * TOKEN) for keys in wants]
    shard.shard.granted(Grants(0, shard.shard.token_client.session, grants), shard.now_ms)
    settle(shard)
    for value in (None, "0"):
        shard.shard.set_config(SetConfig("throttle:t:rate", value), shard.now_ms)
        shard.shard.set_config(SetConfig("throttle:t:burst", value), shard.now_ms)
    before = shard.shard.queues["q"].in_flight
    assert before == 1
    shard.begin(Receive(99, 60_000), client=b"other")
    settle(shard)
    assert shard.shard.queues["q"].in_flight == before


def test_a_park_of_a_throttle_key_and_its_end_reach_many_sets_over_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, followed = sets_of_throttle_keys(monkeypatch)
    shard.shard.park({"t": shard.now_ms + 1000}, shard.now_ms)
    assert followed.total() <= 10
    waiter = shard.begin(Receive(99, 60_000), client=b"waiter")
    settle(shard)
    assert shard.shard.queues["q"].in_flight == 0, "it holds for all"
    assert followed.total() == SETS
    shard.now_ms += 1001
    woken: list[LaneTokens] = []
    wake = shard.shard.token_client.wake
    monkeypatch.setattr(shard.shard.token_client, "wake", lambda each, now_ms: (woken.append(each), wake(each, now_ms))[1])
    shard.turn()
    assert 1 <= len(set(woken)) <= 2 * 10, "some as the turn begins, some as it ends"
    settle(shard)
    first = len(shard.late[waiter].batches[0].records)  # type: ignore[union-attr]
    assert first + len(shard.receive(99)) == 2 * SETS


def test_a_new_session_reaches_many_sets_over_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, followed = sets_of_throttle_keys(monkeypatch)
    shard.shard.set_config(SetConfig("throttle:t:rate", "1000"), shard.now_ms)
    shard.begin(Receive(99, 60_000), client=b"waiter")
    settle(shard)
    followed.clear()
    shard.posted.clear()
    shard.shard.new_session(shard.now_ms)
    settle(shard)
    assert followed.total() == SETS
    assert max(followed.values()) <= 10
    assert {post.command.session for post in shard.posted} == {shard.shard.token_client.session}  # type: ignore[attr-defined]
    wants = {tuple(want.keys) for post in shard.posted for want in post.command.wants if want.least}  # type: ignore[attr-defined]
    assert len(wants) == SETS, "all are asked for again"


def test_keys_that_change_again_and_again_wait_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, _ = sets_of_throttle_keys(monkeypatch)
    for number in range(200):
        shard.shard.park({"t": shard.now_ms + 1000 + number}, shard.now_ms)
        shard.shard.set_config(SetConfig("throttle:t:rate", str(number)), shard.now_ms)
    assert len(shard.shard.token_client._behind) == 1
