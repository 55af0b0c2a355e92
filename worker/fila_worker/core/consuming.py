"""What consumers ask for: receives, subscriptions, heartbeats, and how they leave."""

from typing import TYPE_CHECKING

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
from fila_proto_zmq.errors import InvalidArgumentError, QueueNotFoundError
from fila_proto_zmq.events import ClientLeft, ConsumerLost
from fila_proto_zmq.limits import PREFETCH_MAX, WAIT_MS_MAX
from fila_worker.core.attempts import CONSUMER_LOST, end_all, give_back
from fila_worker.core.consumers import BANK_MS_MAX, Consumer, Subscription, Waiter
from fila_worker.core.delivery import answer_again
from fila_worker.core.leases import SETTLED
from fila_worker.core.settlement import ack_taken, renew

if TYPE_CHECKING:
    from fila_worker.core.effects import Call
    from fila_worker.core.queues import Queue
    from fila_worker.core.state import State


def receive(shard: "State", call: "Call", command: Receive) -> Delivered | None:
    """Wait in line for up to ``count`` messages; the turn's delivery, or a later one, answers.

    A repeated one whose answer was lost gets it again.
    """
    queue = shard.queue(call.queue)
    if not 1 <= command.count <= PREFETCH_MAX:
        raise InvalidArgumentError(f"receive of {command.count} messages: ask for 1 to {PREFETCH_MAX}")
    if not 0 <= command.wait_ms <= WAIT_MS_MAX:
        raise InvalidArgumentError(f"wait of {command.wait_ms} ms: use 0 to {WAIT_MS_MAX}")
    consumer = shard.consumers.open(call.client, call.now_ms)
    if call.request in consumer.waiters:
        return None  # a repeated frame: the first one's answer serves both
    granted = [lease for lease in consumer.granted.get(call.request, ()) if lease.open == len(lease.members)]
    if granted:
        return answer_again(shard, granted, call.now_ms)
    line_up(shard, Waiter(call, consumer, queue, command.count, command.wait_ms))
    return None


def line_up(shard: "State", waiter: Waiter) -> None:
    """Let a new waiter wait in its queue's line."""
    waiter.consumer.waiters[waiter.call.request] = waiter
    waiter.queue.enter(waiter.consumer.client)
    waiter.queue.want(waiter)
    shard.consumers.await_messages(waiter)
    shard.offer(waiter.queue)


def cancel_receive(shard: "State", call: "Call", command: CancelReceive) -> Done:
    """Answer a waiting receive with nothing; what one was answered with already goes back if nobody will take it."""
    consumer = shard.consumers.by_client.get(call.client)
    waiter = consumer.waiters.get(command.request) if consumer else None
    if waiter is not None:
        waiter.finish()
        waiter.queue.forget_done()
        shard.effects.append(waiter.answer_nothing())
    elif consumer is not None and command.release:
        for lease in list(consumer.granted.get(command.request, ())):
            give_back(shard, lease, [index for index, _, _ in lease.open_members()], SETTLED, call.now_ms)
    return Done()


def answer_waiters(shard: "State", now_ms: int) -> None:
    """Answer with nothing the receives that have waited long enough, and whose queues have nothing ready."""
    queues = {}
    for waiter in list(shard.consumers.timed_out(now_ms)):
        if _may_get_something(shard, waiter, now_ms):
            shard.consumers.linger(waiter)
            continue
        waiter.finish()
        queues[waiter.queue.id] = waiter.queue
        shard.use(waiter.queue, now_ms)
        shard.effects.append(waiter.answer_nothing())
    for queue in queues.values():
        queue.forget_done()


def _may_get_something(shard: "State", waiter: Waiter, now_ms: int) -> bool:
    """Whether its queue's turn is yet to come; or, where messages need tokens, the bank's first word on what is ready now."""
    queue = waiter.queue
    if queue.id in shard.wanted:
        return True
    return now_ms < waiter.deadline_ms + BANK_MS_MAX and queue.unanswered > 0


def subscribe(shard: "State", call: "Call", command: Subscribe) -> Subscribed:
    """Open a subscription or keep it alive, renew the leases that its client names, and take back what it never got."""
    queue = shard.queue(call.queue)
    if not 1 <= command.prefetch <= PREFETCH_MAX:
        raise InvalidArgumentError(f"prefetch of {command.prefetch}: use 1 to {PREFETCH_MAX}")
    if command.subscription < 1:
        raise InvalidArgumentError(f"subscription {command.subscription}: number them from 1")
    consumer = shard.consumers.open(call.client, call.now_ms)
    subscription = consumer.subscriptions.get(command.subscription) or _open(shard, consumer, queue, command)
    if subscription.queue is not queue:
        raise InvalidArgumentError(f"subscription {command.subscription} is of queue {subscription.queue.name!r}")
    gone: list[int] = []
    if call.request >= subscription.request:  # else it was overtaken by a frame of a newer connection
        subscription.request = call.request
        subscription.prefetch = command.prefetch
        gone = renew(shard, consumer, command.renew, call.now_ms)
        gone += [lease for lease in command.holds if lease not in consumer.leases]
        _reconcile(shard, subscription, command)
        queue.want(subscription)
        shard.offer(queue)
    return Subscribed(subscription.incarnation, subscription.pushes, gone)


def _open(shard: "State", consumer: Consumer, queue: "Queue", command: Subscribe) -> Subscription:
    """A new subscription; or, after a restart, the same again: the leases that it was granted count as held by it."""
    incarnation = shard.leases.new_id()
    subscription = Subscription(command.subscription, consumer, queue, command.prefetch, incarnation)
    consumer.subscriptions[subscription.id] = subscription
    queue.enter(consumer.client)
    for lease in consumer.leases.values():
        if lease.subscription_id == subscription.id and lease.queue is queue:
            lease.belongs_to(subscription)
    return subscription


def _reconcile(shard: "State", subscription: Subscription, command: Subscribe) -> None:
    """Give back what was leased under an older incarnation and never reached the client.

    A client that believes in an older one (this shard was restarted) may still get what was pushed under it: it names what it
    holds again when it has heard of the current one.
    """
    if command.incarnation == 0:
        subscription.begin(shard.leases.new_id())
    elif command.incarnation != subscription.incarnation or subscription.reconciled:
        return
    subscription.reconciled = True
    _take_unseen(shard, subscription.consumer, subscription.id, {*command.renew, *command.holds}, subscription.incarnation)


def _take_unseen(shard: "State", consumer: Consumer, subscription_id: int, held: set[int], below: int) -> None:
    for lease in consumer.leases.values():
        if lease.subscription_id == subscription_id and lease.id < below and lease.id not in held:
            shard.consumers.unseen[lease.id] = lease


def give_back_unseen(shard: "State", now_ms: int) -> None:
    """Put messages in line again, uncounted, whose push was lost; a bounded number."""
    unseen, left = shard.consumers.unseen, shard.settings.limits.unseen_messages_max
    while unseen and left > 0:
        lease = unseen.pop(next(iter(unseen)))
        if shard.leases.leases.get(lease.id) is lease:
            left -= lease.open
            end_all(shard, lease, None, now_ms)


def unsubscribe(shard: "State", call: "Call", command: Unsubscribe) -> Done:
    """End a subscription; what its client holds stays leased, what never reached it is given back."""
    consumer = shard.consumers.by_client.get(call.client)
    if consumer is None:
        return Done()
    subscription = consumer.subscriptions.get(command.subscription)
    if subscription is not None:
        close_subscription(subscription)
    if command.holds is not None and command.subscription > 0:
        _take_unseen(shard, consumer, command.subscription, set(command.holds), shard.leases.new_id())
    return Done()


def heartbeat(shard: "State", call: "Call", command: Heartbeat) -> Done:
    """Nothing to do: any frame keeps its client alive."""
    return Done()


def goodbye(shard: "State", call: "Call", command: Goodbye) -> Done:
    """Give back, uncounted, all that a client has not settled."""
    consumer = shard.consumers.by_client.get(call.client)
    if consumer is not None:
        ack_taken(shard, consumer, command.taken, call.now_ms)
        shard.notes.append(ClientLeft(consumer.shown, shard.index, _held(consumer)))
        _drop(shard, consumer, None, call.now_ms)
    return Done()


def drop_lost(shard: "State", now_ms: int) -> None:
    """End the leases of the consumers that were silent for too long, as failed attempts."""
    for consumer in shard.consumers.lost(now_ms):
        if not consumer.idle:
            silent_ms = now_ms - consumer.seen_ms
            shard.notes.append(ConsumerLost(consumer.shown, shard.index, _held(consumer), silent_ms))
        _drop(shard, consumer, CONSUMER_LOST, now_ms)


def _held(consumer: Consumer) -> int:
    return sum(lease.open for lease in consumer.leases.values())


def close_subscription(subscription: Subscription) -> None:
    """Take a subscription out of its queue; its leases lose sight of it."""
    consumer, queue = subscription.consumer, subscription.queue
    for lease in consumer.leases.values():
        if lease.subscription is subscription:
            lease.subscription = None
    subscription.prefetch = 0
    if subscription.queued:
        queue.demands.remove(subscription)
    del consumer.subscriptions[subscription.id]
    queue.exit(consumer.client)


def close_demands(shard: "State", queue: "Queue") -> None:
    """A queue is deleted: end its subscriptions and refuse its waiters."""
    gone = QueueNotFoundError(f"queue {queue.name!r} was deleted")
    for client in list(queue.subscribers):
        consumer = shard.consumers.by_client[client]
        for subscription in [each for each in consumer.subscriptions.values() if each.queue is queue]:
            close_subscription(subscription)
        for waiter in [each for each in consumer.waiters.values() if each.queue is queue]:
            waiter.finish()
            shard.effects.append(waiter.refuse(gone))


def _drop(shard: "State", consumer: Consumer, error: str | None, now_ms: int) -> None:
    for subscription in list(consumer.subscriptions.values()):
        close_subscription(subscription)
        shard.use(subscription.queue, now_ms)
    for waiter in list(consumer.waiters.values()):
        waiter.finish()
        waiter.queue.forget_done()
        shard.use(waiter.queue, now_ms)
        shard.effects.append(waiter.answer_nothing())
    for lease in list(consumer.leases.values()):
        end_all(shard, lease, error, now_ms)
    shard.consumers.forget(consumer)
