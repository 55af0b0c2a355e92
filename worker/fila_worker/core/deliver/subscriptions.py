"""The commands of consumers: receives, subscriptions, heartbeats, and how consumers leave."""

from collections.abc import Generator
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final

from fila_proto_zmq.commands import (
    CancelReceive,
    Delivered,
    Done,
    Goodbye,
    Heartbeat,
    Receive,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, OverloadedError
from fila_proto_zmq.events import ClientLeft, ConsumerLost
from fila_proto_zmq.limits import HELD_MAX, PREFETCH_MAX, WAIT_MS_MAX
from fila_worker.core.deliver.delivery import answer_again, strays_of
from fila_worker.core.due_time import AT_ONCE
from fila_worker.core.effects import ANY_LINK
from fila_worker.core.model.component import Component
from fila_worker.core.model.consumers import BANK_MS_MAX, Consumer, Subscription, Waiter
from fila_worker.core.model.leases import SETTLED
from fila_worker.core.settle.failed_attempts import (
    ATTEMPT_COST,
    CONSUMER_LOST,
    GIVE_BACK_COST,
    LEASE_COST,
    end_all,
    give_back,
)
from fila_worker.core.settle.settle import ack_taken, check_fences, renew

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Grants
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

CANCEL_COST: Final = 3
"""The effort to cancel a receive."""

DEMAND_COST: Final = 3
"""The effort to end a receive or a subscription."""

RENEWALS_MAX: Final = 500
"""The most leases that a heartbeat renews at once. More are renewed in steps."""


def receive(state: "State", call: "ClientCall", command: Receive) -> Delivered | None:
    """Put a demand for up to ``count`` messages in line. This turn's delivery, or a later one, answers it.

    Return the answer again for a repeated command whose answer was lost.
    """
    queue = state.queues.find(call.queue)
    _check_partitions(state, queue, command.partitions)
    if not 0 <= command.count <= PREFETCH_MAX:
        raise InvalidArgumentError(f"receive of {command.count} messages: ask for 1 to {PREFETCH_MAX}, or for 0 to look")
    if not 0 <= command.wait_ms <= WAIT_MS_MAX:
        raise InvalidArgumentError(f"wait of {command.wait_ms} ms: use 0 to {WAIT_MS_MAX}")
    consumer = state.consumers.open(call.client, call.now_ms)
    waiter = consumer.waiters.get(call.request)
    if waiter is not None:
        waiter.call.link = call.link  # a repeated frame: the answer to the first serves both
        return None
    granted = [lease for lease in consumer.granted.get(call.request, ()) if lease.open == len(lease.members)]
    if granted:
        return answer_again(state, granted, call.now_ms)
    line_up(state, Waiter(call, consumer, queue, command.count, command.wait_ms, leases=command.leased))
    return None


def _check_partitions(state: "State", queue: "Queue", partitions: int) -> None:
    """Refuse a client that would leave out partitions, or ask for some that are not there."""
    definition = state.runtime.definitions.find(queue.name) if partitions else None
    if definition is not None and len(definition.plan.all) != partitions:
        raise definition.refusal(queue.name)


def line_up(state: "State", waiter: Waiter) -> None:
    """Put a new waiter in its queue's line."""
    waiter.consumer.waiters[waiter.call.request] = waiter
    waiter.queue.enter(waiter.consumer)
    waiter.queue.want(waiter)
    state.consumers.await_messages(waiter)
    state.mark_runnable(waiter.queue)


def cancel_receive(state: "State", call: "ClientCall", command: CancelReceive) -> Done:
    """Answer a waiting receive with nothing. Messages that it was answered with before go back if the client drops them."""
    state.jobs.charge(CANCEL_COST)
    consumer = state.consumers.by_client.get(call.client)
    waiter = consumer.waiters.get(command.request) if consumer else None
    if waiter is not None:
        waiter.finish()
        state.effects.append(waiter.answer_nothing())
    elif consumer is not None and command.release:
        for lease in list(consumer.granted.get(command.request, ())):
            state.jobs.charge(LEASE_COST + lease.open * (ATTEMPT_COST if lease.mortal else GIVE_BACK_COST))
            give_back(state, lease, [index for index, _, _ in lease.open_members()], SETTLED, call.now_ms)
    return Done()


def answer_waiters(state: "State", now_ms: int) -> None:
    """Answer receives with nothing whose time is up and whose queues have nothing ready."""
    for waiter in list(state.consumers.timed_out(now_ms, state.settings.limits.turn_waits_max)):
        if _may_get_something(state, waiter, now_ms):
            state.consumers.linger(waiter)
            continue
        waiter.finish()
        state.touch(waiter.queue, now_ms)
        state.effects.append(waiter.answer_nothing(strays_of(state, waiter.queue)))


def _may_get_something(state: "State", waiter: Waiter, now_ms: int) -> bool:
    """Return whether its queue has not been served yet; or, where messages need tokens, whether the bank has not answered."""
    queue = waiter.queue
    if queue.id in state.runnable:
        return True
    return now_ms < waiter.deadline_ms + BANK_MS_MAX and queue.unanswered > 0


def subscribe(state: "State", call: "ClientCall", command: Subscribe) -> "Subscribed | Work":
    """Open a subscription or keep it alive, renew the leases that its client names, and take back lost deliveries."""
    queue = state.queues.find(call.queue)
    _check_partitions(state, queue, command.partitions)
    if not 0 <= command.prefetch <= PREFETCH_MAX:
        raise InvalidArgumentError(f"prefetch of {command.prefetch}: use 0 to {PREFETCH_MAX}")
    if command.subscription < 1:
        raise InvalidArgumentError(f"subscription {command.subscription}: number them from 1")
    _check_named(len(command.renew) + len(command.holds))
    consumer = state.consumers.open(call.client, call.now_ms)
    if call.request < consumer.ended.get(command.subscription, 0):  # its end overtook it
        return Subscribed(0, 0, [])
    subscription = consumer.subscriptions.get(command.subscription)
    if subscription is None:
        _check_room(state, consumer)
        subscription = _open(state, consumer, queue, command)
    if subscription.queue is not queue:
        raise InvalidArgumentError(f"subscription {command.subscription} is of queue {subscription.queue.name!r}")
    if call.request < subscription.request:  # a frame of a newer connection overtook it
        return Subscribed(subscription.incarnation, subscription.pushes, [])
    subscription.request, subscription.link = call.request, call.link
    subscription.prefetch = command.prefetch
    _reconcile(state, subscription, command)
    queue.want(subscription)
    state.mark_runnable(queue)
    ended = [lease for lease in command.holds if lease not in consumer.leases]
    if len(command.renew) > RENEWALS_MAX:
        return _renew_many(state, subscription, command.renew, ended, call.now_ms)
    gone = renew(state, consumer, command.renew, call.now_ms)
    return Subscribed(subscription.incarnation, subscription.pushes, gone + ended)


def _check_room(state: "State", consumer: Consumer) -> None:
    """Refuse one more subscription if its client, or all together, have too many."""
    limits, all_open, own = state.settings.limits, state.consumers.subscriptions, len(consumer.subscriptions)
    share = limits.client_subscriptions_max
    if all_open >= limits.subscriptions_max // 2:
        share = min(share, limits.subscriptions_max // len(state.consumers))
    if own >= share or all_open >= limits.subscriptions_max:
        raise OverloadedError(
            f"shard {state.index} has {all_open:,} subscriptions, {own:,} of them of this client: end some that are not needed"
        )


def _check_named(leases: int) -> None:
    if leases > HELD_MAX:
        raise InvalidArgumentError(f"{leases:,} leases in one frame of a subscription: name at most {HELD_MAX:,}")


def _renew_many(state: "State", subscription: Subscription, lease_ids: list[int], ended: list[int], now_ms: int) -> "Work":
    gone: list[int] = []
    for start in range(0, len(lease_ids), RENEWALS_MAX):
        gone += renew(state, subscription.consumer, lease_ids[start : start + RENEWALS_MAX], now_ms)
        now_ms = yield state.settings.limits.step_effort
    return Subscribed(subscription.incarnation, subscription.pushes, gone + ended)


def _open(state: "State", consumer: Consumer, queue: "Queue", command: Subscribe) -> Subscription:
    """Add and return a subscription, new or the same after a restart. The leases granted to it count as held by it."""
    incarnation = state.leases.new_id()
    subscription = Subscription(command.subscription, consumer, queue, command.prefetch, incarnation)
    consumer.subscriptions[subscription.id] = subscription
    state.consumers.subscriptions += 1
    queue.enter(consumer)
    for lease in consumer.leases.values():
        if lease.subscription_id == subscription.id and lease.queue is queue:
            lease.belongs_to(subscription)
    return subscription


def _reconcile(state: "State", subscription: Subscription, command: Subscribe) -> None:
    """Give back messages that were leased under an older incarnation and never reached the client.

    A client that knows only an older incarnation (this shard was restarted) may still get messages pushed under it. It names
    the leases that it holds again when it knows the current one.
    """
    if command.incarnation == 0:
        subscription.begin(state.leases.new_id())
    elif command.incarnation != subscription.incarnation or subscription.reconciled:
        return
    subscription.reconciled = True
    _take_unseen(state, subscription.consumer, subscription.id, {*command.renew, *command.holds}, subscription.incarnation)


def _take_unseen(state: "State", consumer: Consumer, subscription_id: int, held: set[int], below: int) -> None:
    for lease in consumer.leases.values():
        if lease.subscription_id == subscription_id and lease.id < below and lease.id not in held:
            state.consumers.unsee(lease)


def give_back_unseen(state: "State", now_ms: int) -> None:
    """Put messages whose push was lost in line again, uncounted, a bounded number of them."""
    unseen, left = state.consumers.unseen, state.settings.limits.unseen_messages_max
    while unseen and left > 0:
        lease = unseen.pop(next(iter(unseen)))
        if state.leases.leases.get(lease.id) is lease:
            left -= lease.open
            end_all(state, lease, None, now_ms)


def unsubscribe(state: "State", call: "ClientCall", command: Unsubscribe) -> Done:
    """End a subscription. Messages that its client holds stay leased. Messages that never reached it are given back."""
    _check_named(len(command.holds or ()))
    consumer = state.consumers.open(call.client, call.now_ms)
    consumer.note_end(command.subscription, call.request)
    subscription = consumer.subscriptions.get(command.subscription)
    if subscription is not None:
        close_subscription(state, subscription)
    if command.holds is not None and command.subscription > 0:
        _take_unseen(state, consumer, command.subscription, set(command.holds), state.leases.new_id())
    return Done()


def heartbeat(state: "State", call: "ClientCall", command: Heartbeat) -> Done:
    """Answer a heartbeat. There is nothing to do: any frame keeps its client alive."""
    return Done()


def goodbye(state: "State", call: "ClientCall", command: Goodbye) -> "Done | Work":
    """Give back, uncounted, all messages that a client has not settled."""
    check_fences(command.taken)
    consumer = state.consumers.by_client.get(call.client)
    if consumer is None:
        return Done()
    ack_taken(state, consumer, command.taken, call.now_ms)
    state.notes.append(ClientLeft(consumer.shown, state.index, _held(consumer)))
    consumer.leaving = True
    return _bid_farewell(state, consumer, None, call.now_ms)


def end_client(state: "State", client: bytes, now_ms: int) -> None:
    """End the demands of a client whose session was ended, by an operator or with its key, and give its messages back, uncounted.

    Those that are delivered at most once do not go back: it may have handed them over, and could not say so.
    """
    consumer = state.consumers.by_client.get(client)
    if consumer is not None:
        state.notes.append(ClientLeft(consumer.shown, state.index, _held(consumer)))
        state.consumers.part_from(consumer)
        state.jobs.start_own(_bid_farewell(state, consumer, None, now_ms, once=CONSUMER_LOST))


def lose_way(state: "State", client: bytes, link: int, now_ms: int) -> list[Waiter]:
    """Push nothing more to a client by a link, because its connection is gone: it would be leased to nobody until the client is
    lost. Return the receives that ended so, without an answer: those of a direct connection. A router counts its own ones.

    A client that lives repeats its receives on its next connection, and each subscription goes on with its next heartbeat.
    """
    consumer = state.consumers.by_client.get(client)
    if consumer is None:
        return []
    waiters = consumer.waiters.values() if link == ANY_LINK else ()
    ended = [waiter for waiter in waiters if waiter.call.link == ANY_LINK]
    for waiter in ended:
        waiter.finish()
        state.touch(waiter.queue, now_ms)
    for subscription in consumer.subscriptions.values():
        if subscription.link == link:
            subscription.prefetch = 0
            subscription.queue.unwant(subscription)
    return ended


def drop_lost(state: "State", now_ms: int) -> None:
    """End the leases of the consumers that were silent for too long, as failed attempts."""
    for consumer in state.consumers.lost(now_ms):
        if not consumer.idle:
            silent_ms = now_ms - consumer.seen_ms
            state.notes.append(ConsumerLost(consumer.shown, state.index, _held(consumer), silent_ms))
        state.consumers.part_from(consumer)
        state.jobs.start_own(_bid_farewell(state, consumer, CONSUMER_LOST, now_ms))


def _held(consumer: Consumer) -> int:
    return sum(lease.open for lease in consumer.leases.values())


def close_subscription(state: "State", subscription: Subscription) -> None:
    """Take a subscription out of its queue and its leases."""
    consumer, queue = subscription.consumer, subscription.queue
    for lease in consumer.leases.values():
        if lease.subscription is subscription:
            lease.subscription = None
    subscription.prefetch = 0
    queue.unwant(subscription)
    del consumer.subscriptions[subscription.id]
    state.consumers.subscriptions -= 1
    queue.exit(consumer)


def close_demands(state: "State", queue: "Queue", why: FilaError) -> "Generator[int, int, None]":
    """End the subscriptions of a queue that is gone, and refuse its waiters. Yield the effort of each step."""
    step, effort = state.settings.limits.step_effort, 0
    for consumer in list(queue.subscribers):
        effort += len(consumer.subscriptions) + len(consumer.waiters)
        for subscription in [each for each in consumer.subscriptions.values() if each.queue is queue]:
            close_subscription(state, subscription)
        for waiter in [each for each in consumer.waiters.values() if each.queue is queue]:
            if effort >= step:
                yield effort
                effort = 0
            effort += DEMAND_COST
            if not waiter.done:
                waiter.finish()
                state.effects.append(waiter.refuse(why))


def _bid_farewell(state: "State", consumer: Consumer, error: str | None, now_ms: int, *, once: str | None = None) -> "Work":
    """End the leases and demands of a consumer that leaves: uncounted if ``error`` is None, else as failed attempts.
    ``once``: the error of messages that are delivered at most once, if that is another one.

    They may also end otherwise between two steps, so each step searches for those that are left.
    """
    state.consumers.part_from(consumer)  # at once: the client's earlier settlements have been carried out
    while not consumer.idle:
        now_ms = yield _take_some(state, consumer, error, once or error, now_ms)
    state.consumers.leaving.pop(consumer, None)
    return Done()


def _take_some(state: "State", consumer: Consumer, error: str | None, once: str | None, now_ms: int) -> int:
    """End some of a consumer's receives, else some leases, else some subscriptions. Return the effort."""
    step, effort = state.settings.limits.step_effort, 0
    for waiter in list(islice(consumer.waiters.values(), 1 + step // DEMAND_COST)):
        waiter.finish()
        state.touch(waiter.queue, now_ms)
        state.effects.append(waiter.answer_nothing())
        effort += DEMAND_COST
    for lease in [] if effort else list(islice(consumer.leases.values(), 1 + step // DEMAND_COST)):
        effort += end_all(state, lease, once if lease.at_most_once else error, now_ms)
        if effort >= step:
            break
    for subscription in [] if effort else list(islice(consumer.subscriptions.values(), 1 + step // DEMAND_COST)):
        close_subscription(state, subscription)
        state.touch(subscription.queue, now_ms)
        effort += DEMAND_COST
    return effort


# --- components -------------------------------------------------------------------------------------------------------


class Subscriptions(Component):
    """The commands of consumers, and the loss of consumers that are silent for too long."""

    verbs: ClassVar = {
        Receive: receive,
        CancelReceive: cancel_receive,
        Subscribe: subscribe,
        Unsubscribe: unsubscribe,
        Heartbeat: heartbeat,
        Goodbye: goodbye,
    }
    patient = True

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.consumers.silence)

    def tick(self, now_ms: int) -> int | None:
        """Part from the consumers that are lost."""
        drop_lost(self.state, now_ms)
        return self.state.consumers.next_loss()


class UnseenLeases(Component):
    """Leases whose push was lost."""

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.consumers.give_back)

    def tick(self, now_ms: int) -> int | None:
        """Give some of them back."""
        give_back_unseen(self.state, now_ms)
        return AT_ONCE if self.state.consumers.unseen else None


class WaitingReceives(Component):
    """Receives whose time is up. It comes after the delivery, which may have messages for them."""

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.consumers.waits)

    def tick(self, now_ms: int) -> int | None:
        """Answer them with nothing, except those that may still get messages: they are checked again once this is known."""
        state = self.state
        answer_waiters(state, now_ms)
        if any(waiter.queue.id in state.runnable for waiter in state.consumers.lingering):
            return AT_ONCE
        return state.consumers.next_deadline()

    def on_grants(self, grants: "Grants", now_ms: int) -> None:
        """Check the receives that wait for the bank's answer."""
        self.timer.by(AT_ONCE)
