"""Run tests of queues a second time, against queues with several partitions: ``pytest --partitions 4 ...``."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pytest

from fila_cluster.client.calls import queues
from fila_cluster.client.calls.request import Request

DIFFER: Final = {
    "test_bad_input.py": "it speaks the protocol itself, to a queue that it does not ask for its partitions",
    "test_messages_are_in_once_and_in_order_per_key": "ids increase within a shard only",
    "test_once_set_every_hook_sees_it": "a message whose hook decides its key is forwarded after it is confirmed",
    "test_on_enqueue_decides_how_a_message_is_scheduled": "likewise",
    "test_a_hook_may_be_replaced_and_removed": "likewise",
    "test_queues_and_keys_have_limits_and_acks_always_work": "the limit on a queue's messages holds for each partition",
    "test_the_callback_comes_with_the_counts": "the id of a batch names the first partition of its callback's queue",
    "test_an_idle_queue_is_deleted": "idle partitions are removed, and made again when the queue is named",
    "test_a_template_leaves_the_number_of_partitions_of_a_queue_that_exists": "it begins with a queue without partitions",
    "test_why_a_message_waits_while_others_of_its_key_move": "likewise",
    "test_who_is_killed_behind_a_router_is_given_little_more": "consumers ask for each message, so it is given none",
    "test_reserved_batches.py": "reservations are made for each partition",
    "test_views.py": "views are opened for each partition",
}
"""Tests, or files, whose promise differs for such queues, with the reason."""


def spread_queues(partitions: int) -> None:
    """Let each queue that is created without a number of partitions have this number."""
    if partitions == 1:
        return
    create = queues.creation

    def spread(name: Any, options: Mapping[str, Any]) -> list[Request]:
        usual = options.get("partitions") in {None, 1}
        return create(name, {**options, "partitions": partitions} if usual else options)

    queues.creation = spread


def without_those_that_differ(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the tests whose promise is the same for queues with several partitions."""
    return [item for item in items if not any(part in item.nodeid for part in DIFFER)]
