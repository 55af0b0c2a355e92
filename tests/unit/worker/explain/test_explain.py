"""Questions that cannot be answered."""

import pytest

from fila_proto_zmq.commands import (
    Explain,
)
from fila_proto_zmq.errors import InvalidArgumentError, MessageNotFoundError, QueueNotFoundError
from tests.support.shard.explained import why
from tests.support.shard.shard import ADMIN, ShardHarness


def test_a_message_and_a_key_at_once(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    with pytest.raises(InvalidArgumentError, match="one of them"):
        why(shard, message, key="default")


def test_a_queue_that_does_not_exist(shard: ShardHarness) -> None:
    with pytest.raises(QueueNotFoundError):
        why(shard, queue="nowhere")


@pytest.mark.parametrize("message_id", [(-1, 5), (2**64, 1), (0, 0)])
def test_an_id_that_can_not_be(shard: ShardHarness, message_id: tuple[int, int]) -> None:
    with pytest.raises(MessageNotFoundError):
        shard.ask(Explain(message_id), "q", ADMIN)
