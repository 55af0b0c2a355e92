"""Commands on a queue with several partitions: asked of each partition that they concern, and answered as one.

A command about one fairness key goes to the key's partition. One about a message goes to each partition until the message is
found. All others go to each partition, and cost a frame for each: at once, unless what one is asked depends on what another has
answered. A partition whose shard is down does not keep the others from being asked. What is read is then what the others have;
what should be done raises its error at the end.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from fila_cluster.client.calls.request import Request
from fila_cluster.figures import counted
from fila_proto_zmq import commands
from fila_proto_zmq.errors import (
    DeadLetterQueueNotEmptyError,
    FilaError,
    InvalidArgumentError,
    MessageNotFoundError,
    NotADeadLetterQueueError,
    QueueNotFoundError,
)
from fila_proto_zmq.names import PARTITION_MARK, dead_letter_name, is_dead_letter, partition_name, root_name, whole_queue
from fila_proto_zmq.partitions import BY_KEY, Plan
from fila_proto_zmq.reasons import ReasonCode

Replies: TypeAlias = list[Any]

EMPTY: Final = "empty"
"""The state of a queue without messages, and the code of the reason for that."""


def is_of_all(queue: str, command: commands.Command) -> bool:
    """Return whether a command may be asked of all partitions of a queue: it is for one, and names none of them."""
    return type(command) in _KINDS and PARTITION_MARK not in queue


def ask_partitions(queue: str, plan: Plan, command: commands.Command, earlier: "Fan | None" = None) -> "Fan":
    """Return the steps of a command on a queue with several partitions. ``earlier``: those when it had other ones."""
    kind = _KINDS.get(type(command))
    if kind is None:
        raise InvalidArgumentError(
            f"{type(command).__name__} for {queue!r}, which has {plan.partitions} partitions: name one of them, as in "
            f"{partition_name(queue, 0)!r}"
        )
    fan = kind(queue, plan, command)
    if earlier is not None:
        fan.go_on(earlier)
    return fan


class Fan:
    """The :class:`~fila_cluster.client.calls.request.Steps` of one command: of all partitions, in order."""

    at_once = False
    """Whether a request may be sent before the one before it is answered."""
    is_anew = False
    """Whether the client's timeout counts anew for the latest request."""
    reads = False
    """Whether it is answered by the partitions that are up."""
    may_lack = False
    """Whether the queue that is asked now may be missing."""

    def __init__(self, queue: str, plan: Plan, command: Any) -> None:
        self.queue = queue
        self.plan = plan
        self.command = command
        self.replies: Replies = []
        self.error: FilaError | None = None
        self.lost: FilaError | None = None
        """Why the partitions are other ones now, if they are."""
        self.names = self.concerned()
        self._asked = 0

    def concerned(self) -> list[str]:
        """Return the partitions to ask."""
        key = getattr(self.command, "fairness_key", None)
        if key is None:
            return self.plan.names(self.queue)
        names = self.plan.names_for(self.queue, key)
        return names[:1] if isinstance(self.command, commands.Pause) and self.plan.spread == BY_KEY else names

    def next_request(self) -> Request | None:
        """Return the next request; None when it is done."""
        if self._asked == len(self.names) or self.is_over():
            return None
        self._asked += 1
        return Request(self.names[self._asked - 1], self.next_command())

    @property
    def is_last(self) -> bool:
        """Whether no other partition is asked after the latest request."""
        return self._asked == len(self.names)

    def next_command(self) -> commands.Command:
        """Return the command for the next partition."""
        return self.command  # type: ignore[no-any-return]  # as it came

    def is_over(self) -> bool:
        """Return whether the partitions that are left need not be asked."""
        return False

    def answered(self, reply: Any) -> None:
        """Take in the reply of a partition."""
        self.replies.append(reply)

    def refused(self, error: FilaError) -> None:
        """Take in the error of a partition. Raise it if it is not about that partition alone."""
        if not error.retryable:
            raise _shown(error, self.queue)
        self.error = self.error or error

    def lose(self, error: FilaError) -> None:
        """Note that the partitions are other ones now."""
        self.lost = _shown(error, self.queue)

    def go_on(self, earlier: Any) -> None:
        """Keep what the command has done in the partitions that the queue had before."""

    @property
    def result(self) -> Any:
        """The reply for the whole queue. Raise the error of a partition that should have done something."""
        if self.lost is not None:
            raise self.lost
        if self.error is not None and not (self.reads and self.replies):
            raise _shown(self.error, self.queue)
        return self.merged(self.replies)

    def merged(self, replies: Replies) -> Any:
        """Return the reply to all of them."""
        return replies[0]


class _Summed(Fan):
    """Commands in bounded steps, each of which counts messages. A count of the command is what is left of it."""

    def go_on(self, earlier: "_Summed") -> None:
        self.replies = [replace(reply, remaining=0) for reply in earlier.replies]

    def next_command(self) -> commands.Command:
        count = getattr(self.command, "count", 0)
        command: commands.Command = self.command
        return replace(command, count=count - self._done) if count else command

    def is_over(self) -> bool:
        count = getattr(self.command, "count", 0)
        return bool(count) and self._done >= count

    def refused(self, error: FilaError) -> None:
        if isinstance(error, NotADeadLetterQueueError) and (self.replies or self.error or self._asked < len(self.names)):
            return  # no dead letter has come to this partition
        super().refused(error)

    @property
    def _done(self) -> int:
        return sum(reply.count for reply in self.replies)

    def merged(self, replies: Replies) -> Any:
        if isinstance(self.command, commands.Redrive) and self.command.ids is not None:
            looked_at = min(reply.looked_at for reply in replies)  # those behind are asked of all of them again
            return commands.Redriven(self._done, sum(reply.remaining for reply in replies), looked_at)
        return type(replies[0])(self._done, sum(reply.remaining for reply in replies))


class _Purging(_Summed):
    at_once = True


class _Pausing(Fan):
    at_once = True


class _Browsing(Fan):
    reads = True

    def __init__(self, queue: str, plan: Plan, command: commands.Browse) -> None:
        super().__init__(queue, plan, command)
        self._seek = command.after is not None

    def next_command(self) -> commands.Command:
        command: commands.Browse = self.command
        after = command.after if self._seek else None
        return replace(command, limit=self.command.limit - self._found, after=after)

    def is_over(self) -> bool:
        return self._found >= self.command.limit or (bool(self.replies) and self.replies[-1].more)

    @property
    def _found(self) -> int:
        return sum(len(reply.messages) for reply in self.replies)

    def answered(self, reply: commands.Browsed) -> None:
        self._seek = False
        super().answered(reply)

    def refused(self, error: FilaError) -> None:
        if self._seek and isinstance(error, MessageNotFoundError):
            if self._asked == len(self.names):
                raise _shown(self.error or error, self.queue)
            return  # the message is in another partition
        super().refused(error)

    def merged(self, replies: Replies) -> commands.Browsed:
        messages = [message for reply in replies for message in reply.messages]
        return commands.Browsed(messages, self._asked < len(self.names) or any(reply.more for reply in replies))


class _Searching(Fan):
    """Commands about one message: the first partition that has it answers."""

    reads = True

    def __init__(self, queue: str, plan: Plan, command: Any) -> None:
        super().__init__(queue, plan, command)
        self._missing: FilaError | None = None

    def is_over(self) -> bool:
        return bool(self.replies)

    def refused(self, error: FilaError) -> None:
        if isinstance(error, MessageNotFoundError):
            self._missing = error
        else:
            super().refused(error)

    @property
    def result(self) -> Any:
        if not self.replies and self.error is None and self._missing is not None:
            raise _shown(self._missing, self.queue)
        return super().result


class _Explaining(_Searching):
    """A message that waits for other partitions has the reasons of these, too."""

    def __init__(self, queue: str, plan: Plan, command: commands.Explain) -> None:
        super().__init__(queue, plan, command)
        self._all = self.at_once = command.id is None
        self._awaited: list[str] = []
        """The partitions that the message waits for."""

    def is_over(self) -> bool:
        return not self._all and super().is_over() and self._asked == len(self.names)

    def answered(self, reply: commands.Explained) -> None:
        super().answered(reply)
        if self._all or self._awaited:
            return
        del self.names[self._asked :]
        for reason in reply.reasons:
            if reason.code == ReasonCode.MOVING:
                self._awaited = [partition_name(self.queue, number) for number in reason.details["waits_for"]]
                self.names += self._awaited
                self.command = commands.Explain(fairness_key=reason.details["fairness_key"])

    def merged(self, replies: list[commands.Explained]) -> commands.Explained:
        some = [reply for reply in replies if reply.state != EMPTY] or replies
        some = [reply for reply in some if any(each.code != EMPTY for each in reply.reasons)] or some
        some = replies[:1] if self._awaited else some
        leaving = {
            (each.code, each.details.get("partition")): each
            for reply in replies
            for each in reply.reasons
            if each.code == ReasonCode.LEAVING
        }
        reasons: dict[tuple[str, Any], commands.Reason] = {}
        for reason in [each for reply in some for each in reply.reasons]:
            if reason.code != ReasonCode.LEAVING:
                known = reasons.setdefault((reason.code, reason.details.get("throttle_key")), reason)
                if known is not reason:
                    _add_up(known, reason)
            if reason.code in {ReasonCode.MOVING, ReasonCode.LEAVING}:
                reasons |= leaving
        reasons |= leaving
        for reason in reasons.values():
            self._note_outage(reason)
            reason.text = _whole(reason.text, self.queue)
        times = [reply.estimated_ms for reply in some if reply.estimated_ms]
        return commands.Explained(some[0].state, list(reasons.values()), some[0].position, min(times, default=0))

    def _note_outage(self, reason: commands.Reason) -> None:
        """Say of messages that wait for other partitions that the shard of one does not answer."""
        shard = None if self.error is None else self.error.details.get("shard")
        if self.error is not None and reason.code == ReasonCode.MOVING and shard in reason.details["shards"]:
            reason.details["down"] = shard
            reason.text += f"; {self.error.message}"


def _add_up(reason: commands.Reason, other: commands.Reason) -> None:
    """Let a reason for keys of one partition stand for those of another one, too."""
    details, more = reason.details, other.details
    if reason.code == ReasonCode.LIMITED:
        details["messages"] += more["messages"]
        limits = {each["throttle_key"]: each for each in details["limits"]}
        for each in more["limits"]:
            known = limits.setdefault(each["throttle_key"], each)
            if known is not each:  # the limits are the cluster's
                known["messages"] += each["messages"]
        details["limits"] = list(limits.values())
    elif "keys" in details and "keys" in more and reason.code != ReasonCode.KEYS_AHEAD:
        details["keys"] += more["keys"]
        details["messages"] += more["messages"]
        example = f"for example {details['fairness_key']!r}: "
        text = reason.text.partition(": ")[2].removeprefix(example)
        those = f"{counted(details['keys'], 'fairness key')} with {counted(details['messages'], 'message')}"
        reason.text = f"{those}: {example}{text}"


def info_of(infos: list[commands.QueueInfo]) -> commands.QueueInfo:
    """Return the row of a queue with these partitions. It has the shard of the first."""
    first = infos[0]
    return commands.QueueInfo(
        whole_queue(first.name),
        sum(info.pending for info in infos),
        sum(info.in_flight for info in infos),
        sum(info.delayed for info in infos),
        max(info.consumers for info in infos),
        all(info.paused for info in infos),
        first.is_dead_letter,
        first.shard,
    )


def joined_infos(infos: list[commands.QueueInfo]) -> list[commands.QueueInfo]:
    """Return a list of queues in which those with several partitions have one row each, by name."""
    groups: dict[str, list[commands.QueueInfo]] = {}
    for info in infos:
        groups.setdefault(whole_queue(info.name), []).append(info)
    return [groups[name][0] if groups[name][0].name == name else info_of(groups[name]) for name in sorted(groups)]


def joined_moves(moves: Iterable[commands.QueueMove | None]) -> commands.QueueMove | None:
    """Return how far a change of the number of partitions has come, by what each of them knows."""
    known = [each for each in moves if each is not None]
    if not known:
        return None
    last = max(known, key=lambda each: (each.since_ms, len(each.drained), -len(each.waits_for)))
    left = [
        part for each in known for part in each.left if each.since_ms == last.since_ms and part.partition in last.waits_for
    ]
    return replace(last, left=left, still_ms=min(each.still_ms for each in known))


class _Counting(Fan):
    """All pages of all partitions in one reply."""

    reads = at_once = True

    def __init__(self, queue: str, plan: Plan, command: commands.GetQueueStats) -> None:
        super().__init__(queue, plan, command)
        self._pages: list[Request] = []
        """The requests for further pages."""

    def next_request(self) -> Request | None:
        self.is_anew = bool(self._pages)
        return self._pages.pop() if self._pages else super().next_request()

    def answered(self, reply: commands.QueueStats) -> None:
        if reply.next:
            self._pages.append(Request(reply.info.name, commands.GetQueueStats(reply.next)))
        super().answered(reply)

    def merged(self, replies: list[commands.QueueStats]) -> commands.QueueStats:
        firsts = list({reply.info.name: reply for reply in reversed(replies)}.values())[::-1]
        keys: dict[str, commands.KeyStats] = {}
        for key in [each for reply in replies for each in reply.keys]:
            known = keys.get(key.fairness_key)
            keys[key.fairness_key] = key if known is None or self.plan.spread == BY_KEY else _joined_keys(known, key)
        throttles = {each.key: each for reply in replies for each in reply.throttles}
        return commands.QueueStats(
            info_of([reply.info for reply in firsts]),
            max(reply.oldest_pending_ms for reply in replies),
            replies[0].quantum,
            enqueued=sum(reply.enqueued for reply in firsts),
            delivered=sum(reply.delivered for reply in firsts),
            acked=sum(reply.acked for reply in firsts),
            nacked=sum(reply.nacked for reply in firsts),
            expired=sum(reply.expired for reply in firsts),
            dead_lettered=sum(reply.dead_lettered for reply in firsts),
            keys=list(keys.values()),
            throttles=[throttles[name] for name in sorted(throttles)],
            max_in_flight=replies[0].max_in_flight,
            move=joined_moves(reply.move for reply in firsts),
        )


def _joined_keys(one: commands.KeyStats, other: commands.KeyStats) -> commands.KeyStats:
    return commands.KeyStats(
        one.fairness_key,
        max(one.weight, other.weight),
        one.pending + other.pending,
        one.in_flight + other.in_flight,
        one.delayed + other.delayed,
        one.deficit + other.deficit,
        one.delivered + other.delivered,
        one.paused and other.paused,
    )


class _Describing(Fan):
    reads = at_once = True

    def merged(self, replies: list[commands.QueueDescription]) -> commands.QueueDescription:
        consumers: dict[str, commands.ConsumerView] = {}
        for view in [each for reply in replies for each in reply.consumers]:
            known = consumers.get(view.consumer)
            consumers[view.consumer] = view if known is None else _joined_consumers(known, view)
        hooks = [reply.hooks for reply in replies if reply.hooks is not None]
        return replace(
            replies[0],
            info=info_of([reply.info for reply in replies]),
            size_bytes=sum(reply.size_bytes for reply in replies),
            consumers=sorted(consumers.values(), key=lambda each: -each.in_flight),
            consumers_left_out=max(reply.consumers_left_out for reply in replies),
            hooks=max(hooks, key=lambda each: (each.open_until_ms, each.failures_in_row), default=None),
        )


def _joined_consumers(one: commands.ConsumerView, other: commands.ConsumerView) -> commands.ConsumerView:
    ends = [each.expires_ms for each in (one, other) if each.expires_ms]
    return commands.ConsumerView(
        one.consumer,
        one.kind,
        one.prefetch + other.prefetch,
        one.credit + other.credit,
        one.in_flight + other.in_flight,
        max(one.heard_ms, other.heard_ms),
        min(ends, default=0),
    )


class _Updating(Fan):
    """The options are the cluster's, not those of a partition."""

    def concerned(self) -> list[str]:
        return [""]

    def next_command(self) -> commands.Command:
        if is_dead_letter(self.queue):
            raise InvalidArgumentError(f"{self.queue!r} is a dead letter queue: update its source queue")
        return commands.UpdatePartitioned(self.queue, self.command.options, self.command.given)

    def merged(self, replies: Replies) -> commands.Done:
        return commands.Done()


class _Deleting(Fan):
    """First the dead letters are counted, unless it is forced."""

    def concerned(self) -> list[str]:
        if is_dead_letter(self.queue):
            raise InvalidArgumentError(f"{self.queue!r} is deleted with its source queue: delete {self.queue[:-4]!r}")
        return [*([] if self.command.force else self.plan.names(dead_letter_name(self.queue))), ""]

    def next_command(self) -> commands.Command:
        if self._asked < len(self.names):
            return commands.GetQueueStats()
        letters = sum(reply.info.depth for reply in self.replies)
        if letters:
            raise DeadLetterQueueNotEmptyError(
                f"{dead_letter_name(self.queue)!r} holds {letters} messages: redrive them, or delete with force",
                details={"messages": letters},
            )
        if self.error is not None:
            raise _shown(self.error, self.queue)
        return commands.DeletePartitioned(self.queue)

    @property
    def may_lack(self) -> bool:  # type: ignore[override]
        return self._asked < len(self.names)  # it may have no dead letter queue

    def refused(self, error: FilaError) -> None:
        if not (isinstance(error, QueueNotFoundError) and self.may_lack):
            super().refused(error)

    def merged(self, replies: Replies) -> commands.Done:
        return commands.Done()


class _First(Fan):
    """Commands that one partition takes for all: batches whose callback goes to the queue."""

    def concerned(self) -> list[str]:
        return [partition_name(self.queue, 0)]


_KINDS: Final[dict[type[commands.Command], Callable[[str, Plan, Any], Fan]]] = {
    commands.Pause: _Pausing,
    commands.PurgeQueue: _Purging,
    commands.Redrive: _Summed,
    commands.MoveMessages: _Summed,
    commands.Browse: _Browsing,
    commands.Cancel: _Searching,
    commands.Explain: _Explaining,
    commands.GetQueueStats: _Counting,
    commands.DescribeQueue: _Describing,
    commands.UpdateQueue: _Updating,
    commands.DeleteQueue: _Deleting,
    commands.OpenBatch: _First,
    commands.SealBatch: _First,
    commands.AbandonBatch: _First,
}


def _whole(text: str, queue: str) -> str:
    """Return a text with the name of the queue in place of those of its partitions."""
    root = re.escape(root_name(queue))
    return re.sub(rf"({root}(?:\.dlq)?)@[0-9]+", r"\1", text)


def _shown(error: FilaError, queue: str) -> FilaError:
    error.message = _whole(error.message, queue)
    error.details = {key: _whole(each, queue) if isinstance(each, str) else each for key, each in error.details.items()}
    error.args = (error.message,)
    return error
