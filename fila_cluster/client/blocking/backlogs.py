# Made by .ci/make_blocking.py from fila_cluster/client/asynchronous/backlogs.py: edit that, then run `make blocking`.

"""The calls about backlogs."""

import time

from fila_cluster.client import checks
from fila_cluster.client.blocking.administration import Administration
from fila_cluster.client.calls import backlog
from fila_cluster.client.calls.explain import Explaining
from fila_cluster.client.calls.request import Request
from fila_cluster.client.explanation import Explanation
from fila_cluster.client.message import MessageState, MessageView
from fila_proto_zmq import commands
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.ids import parse_id


class Backlogs(Administration):
    """The calls of an :class:`Client` about backlogs."""

    def browse(
        self,
        queue: str,
        *,
        limit: int = 100,
        after: str | None = None,
        fairness_key: str | None = None,
        state: MessageState | None = None,
    ) -> list[MessageView]:
        """Return messages as they are now, without leasing them: key by key, each key in the order of delivery.

        The client's timeout counts anew for each thousand messages.

        Args:
            queue: The queue.
            limit: The most messages to return.
            after: The id of the last message that was seen: begin behind it. None: begin with the first.
            fairness_key: Only messages of this key; None: of all keys.
            state: Only ``"pending"``, ``"delayed"`` or ``"leased"`` messages; None: all.

        Raises:
            QueueNotFoundError: There is no such queue.
        """
        return self._walk(backlog.Browsing(queue, limit, after, fairness_key, state))

    def cancel(self, queue: str, message_id: str) -> bool:
        """Remove a pending or delayed message, and return True; return False if it is leased.

        Args:
            queue: The queue.
            message_id: The id of the message.

        Raises:
            QueueNotFoundError: There is no such queue.
            MessageNotFoundError: The message is not in the queue.
        """
        request = Request(checks.queue_name(queue), commands.Cancel(*parse_id(message_id)))
        cancelled: commands.Cancelled = self.request(request)
        return cancelled.removed

    def purge_queue(self, name: str, *, fairness_key: str | None = None) -> int:
        """Remove the pending and delayed messages of a queue, or of one fairness key; return how many. Leased ones stay.

        The client's timeout counts anew for each of its steps.

        Args:
            name: The queue.
            fairness_key: Only messages of this key; None: of all keys.

        Raises:
            QueueNotFoundError: There is no such queue.
        """
        return self._walk(backlog.Purging(name, fairness_key))

    def redrive(self, dlq: str, count: int = 0, *, fairness_key: str | None = None) -> int:
        """Send pending dead letters back to the queues that they came from; return how many.

        They take the normal way of an enqueue: the hook of the queue runs again, and their attempts are 0. The client's
        timeout counts anew for each thousand messages.

        Args:
            dlq: A dead letter queue, or a queue that another one names as its ``dead_letter``.
            count: The most messages to send back; 0: all.
            fairness_key: Only messages of this key; None: of all keys.

        Raises:
            QueueNotFoundError: There is no such queue.
            NotADeadLetterQueueError: The queue collects no dead letters.
        """
        return self._walk(backlog.Redriving(dlq, count, fairness_key))

    def move(
        self,
        queue: str,
        target: str,
        *,
        fairness_key: str | None = None,
        count: int = 0,
        rate: float | None = None,
    ) -> int:
        """Take pending and delayed messages to the line of another queue; return how many have arrived there.

        They take the normal way of an enqueue: the hook of the other queue runs, its limits hold, and their attempts are 0.
        They keep their ids, headers, and what is left of their delay and time to live. Leased messages stay, and so do
        members of a batch. Each message is in one of the two queues at any time, whatever is killed meanwhile. The client's
        timeout counts anew for each thousand messages.

        Args:
            queue: The queue that has the messages, which may be a dead letter queue.
            target: The other queue.
            fairness_key: Only messages of this key; None: of all keys.
            count: The most messages to move; 0: all.
            rate: The most messages to move a second; None: no limit.

        Raises:
            QueueNotFoundError: One of the queues does not exist. Messages that were moved before stay moved.
            OverloadedError: The other queue has no room for more.
        """
        steps = backlog.Moving(queue, target, fairness_key, count, rate)
        while (request := steps.next_request()) is not None:
            steps.answered(self.request(request))
            if steps.pause_s:
                time.sleep(steps.pause_s)
        return steps.result

    def why(self, queue: str, *, message_id: str | None = None, fairness_key: str | None = None) -> Explanation:
        """Return why a message, a fairness key or, if neither is named, the queue waits.

        The first of the reasons has to end first. A shard that is down is an explanation, too, and comes at once. The
        client's timeout counts anew for each of at most three questions.

        Args:
            queue: The queue.
            message_id: The message, which may also be among the dead letters of the queue.
            fairness_key: The key.

        Raises:
            QueueNotFoundError: There is no such queue.
            MessageNotFoundError: The message is neither in the queue nor among its dead letters.
        """
        explaining = Explaining(queue, message_id, fairness_key)
        while (request := explaining.next_request()) is not None:
            try:
                reply = self.request(request)
            except FilaError as error:
                explaining.refused(error)
            else:
                explaining.answered(reply)
        return explaining.result
