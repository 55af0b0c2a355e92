"""A batch of settlements that names a delivery twice settles the others.

Source: redpanda-data/connect issue 182, bbc/sqs-consumer issue 193
Right: the repetition alone fails, by its place in the batch, and all else is settled
"""

import pytest

from fila_cluster import Message
from fila_cluster.errors import AlreadySettledError, BatchError
from fila_cluster.testing import Fila


def test_only_the_repetition_fails(fila: Fila) -> None:
    fila.create_queue("jobs")
    fila.enqueue_many("jobs", [Message(b"x")] * 3)
    first, second, third = fila.receive("jobs", 3)
    with pytest.raises(BatchError) as failed:
        fila.ack([first, second, first, third])
    assert [type(result) for result in failed.value.results] == [type(None), type(None), AlreadySettledError, type(None)]
    fila.assert_acked("jobs", 3)
