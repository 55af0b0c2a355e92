"""The auditor: a client that looks at every message, takes it, and comes back after a restart to see that nothing is there."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from fila_proto_zmq.errors import FilaError, QueueExistsError, QueueNotFoundError, RequestTimeoutError
from tests.simulation.history import History, token_in

if TYPE_CHECKING:
    from tests.simulation.actors.programs import Programs

DRAIN_ROUNDS_MAX = 400
TRIES_MAX = 60
DELAYS_S = 3.5
"""Longer than anything is delayed."""
STRAY_LOOK_S, STRAY_LOOKS_MAX = 1.5, 5
"""Between two looks at messages that are in a wrong partition, and how often their number may stay the same."""
CALLBACKS_S = 4.0
"""Longer than a callback takes if every frame between the shards is lost once."""


async def patiently(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until there is an answer that lasts; there are no faults any more, so it may not take long."""
    for _ in range(TRIES_MAX):
        try:
            return await ask()
        except FilaError as error:
            if not error.retryable:
                raise
            await asyncio.sleep(0.5)
    return await ask()


async def audit(
    programs: "Programs",
    history: History,
    queues_in_order: Callable[[], Iterable[tuple[str, Any]]],
    strays: Callable[[], Counter[str]],
    unfinished: Callable[[], list[str]],
) -> None:
    """Let everything go that is held up, look at where each message is, then take and ack them all.

    ``strays``: what is in a wrong partition. ``unfinished``: what is left of changes of the number of partitions.
    """
    client = programs.client
    for queue, options in queues_in_order():
        if _may_be_missing(history, queue):
            await _make_sure_of(client, queue, options)
    if history.saw("put_schedule"):
        history.schedules_end_us = history.world.now_us
        for schedule in await patiently(client.list_schedules):
            await patiently(lambda name=schedule.name: client.delete_schedule(name))
    if history.saw("set_config") or history.saw("set_throttle"):
        for key in await patiently(lambda: client.list_config("throttle")):
            await patiently(lambda key=key: client.delete_config(key))
    if history.saw("pause"):
        paused = {(call.queue, call.said["key"]) for call in history.calls if call.kind == "pause"}
        await asyncio.gather(
            *(
                _unless_gone(lambda queue=queue, key=key: client.resume(queue, fairness_key=key))
                for queue, key in sorted(paused, key=str)
            )
        )
    await asyncio.sleep(DELAYS_S)
    await _look_for_two(client, history)
    await _look_for_strays(history, strays)
    await _look_for_moves(history, unfinished)
    await _drain(programs, history)
    if history.batches:  # the last acks have callbacks follow
        await asyncio.sleep(CALLBACKS_S)
        await _drain(programs, history)


def _may_be_missing(history: History, queue: str) -> bool:
    """Whether a queue that others need may rightly not be there: messages that wait to be moved into it are taken once it is."""
    if queue.startswith("brief"):
        return False
    if history.power_cuts or "idle_expiry" in history.queues[queue]:
        return True
    about = [call for call in history.calls if call.queue == queue and call.kind in ("create_queue", "delete_queue")]
    return any(call.kind == "delete_queue" for call in about) or not any(call.ok for call in about)


async def _make_sure_of(client: Any, queue: str, options: dict[str, Any]) -> None:
    while True:
        try:
            await patiently(lambda: client.create_queue(queue, **options))
        except QueueExistsError:
            return
        except RequestTimeoutError:  # it may be made
            continue
        return


async def _unless_gone(ask: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await patiently(ask)
    except QueueNotFoundError:
        return None


async def _look_for_two(client: Any, history: History) -> None:
    """Each message is in one place; what moves while it is looked at is looked at again."""
    for attempt in range(3):
        places: dict[str, list[str]] = {}
        for name, views in await _browsed(client):
            for view in views:
                places.setdefault(view.id, []).append(f"{name} ({view.state})")
        twice = {message: where for message, where in places.items() if len(where) > 1}
        if not twice:
            return
        await asyncio.sleep(1.0)
        if attempt == 2:
            for message, where in twice.items():
                if not history.is_excused_id(message):
                    in_one_queue = len({name.partition(" ")[0] for name in where}) == 1
                    history.fail("strays" if in_one_queue else "one place", f"message {message} is in {where}")


async def _look_for_strays(history: History, strays: Callable[[], Counter[str]]) -> None:
    """Each message goes to its partition, a few of them at a time."""
    left, looks = strays(), 0
    while left and looks < STRAY_LOOKS_MAX:
        await asyncio.sleep(STRAY_LOOK_S)
        before, left = left, strays()
        looks = looks + 1 if left.total() >= before.total() else 0
    for where, count in left.items():
        history.fail("strays", f"{count} messages of the key {where} do not go on")


async def _look_for_moves(history: History, unfinished: Callable[[], list[str]]) -> None:
    """All that moves comes to its end."""
    for _ in range(STRAY_LOOKS_MAX):
        left = unfinished()
        if not left:
            return
        await asyncio.sleep(STRAY_LOOK_S)
    for each in left:
        history.fail("unfinished", each)


async def _browsed(client: Any) -> list[tuple[str, list[Any]]]:
    """What is in each queue that has anything."""

    async def browse(name: str) -> tuple[str, list[Any]]:
        return name, await _unless_gone(lambda: client.browse(name, limit=10_000)) or []

    infos = [info for info in await patiently(client.list_queues) if info.depth]
    return await asyncio.gather(*(browse(info.name) for info in infos))


async def _drain(programs: "Programs", history: History) -> None:
    client = programs.client
    for _ in range(DRAIN_ROUNDS_MAX):
        infos = [info for info in await patiently(client.list_queues) if info.depth]
        if not infos:
            return
        if not any(await asyncio.gather(*(_take_all(programs, info.name) for info in infos))):
            await asyncio.sleep(0.5)
    left = {info.name: (info.pending, info.in_flight, info.delayed) for info in infos}
    history.fail("audit", f"cannot be emptied (pending, in flight, delayed): {left}")


async def _take_all(programs: "Programs", queue: str) -> int:
    taken = 0
    while True:
        try:
            deliveries = await patiently(lambda: programs.client.receive(queue, 100))
        except QueueNotFoundError:
            return taken
        if not deliveries:
            return taken
        taken += len(deliveries)
        programs._hand_over(deliveries)
        owed = [delivery for delivery in deliveries if not delivery._lease.at_most_once]
        for _ in range(TRIES_MAX):
            if not owed:
                break
            owed = await programs.settle_together("ack", owed)


async def audit_again(programs: "Programs", history: History) -> None:
    """After a restart of everything there is nothing."""
    client = programs.client
    infos = [info for info in await patiently(client.list_queues) if info.depth]
    seen: Counter[str] = Counter()
    for info in infos:
        for view in await patiently(lambda name=info.name: client.browse(name, limit=10_000)):
            token = token_in(view.headers, view.payload)
            seen[token] += 1
            history.fail("acked returns", f"{token} is in {info.name} ({view.state}) after a restart, though all was acked")
    if infos and not seen:
        history.fail("acked returns", f"after a restart there is something: {infos}")
    await _drain(programs, history)
