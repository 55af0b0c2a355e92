"""One ``why``, in steps: the first shard is asked, then others for what it lacks.

A message that became a dead letter of another shard is searched for there. If the queue's shard has no live worker, that
is the answer and comes at once: it is the reason why the messages wait, not an error. On a replicated log the copies of
the shard say what it waits for: a standby that takes over, a copy that has to catch up, or one that is not there.
"""

from typing import Any

from fila_cluster.client import checks, views
from fila_cluster.client.calls.request import Request
from fila_cluster.client.explanation import Explanation, Reason, explanation
from fila_cluster.client.shard_copies import Risk, shard_copies, shard_trouble
from fila_proto_zmq import commands
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, MessageNotFoundError, ShardUnavailableError
from fila_proto_zmq.ids import parse_id
from fila_proto_zmq.outages import BEGINNING, FOLLOWING
from fila_proto_zmq.reasons import ReasonCode

UNKNOWN = "unknown"
"""The state of messages on a shard that is down."""


class Explaining:
    """The next request, the meaning of its answer or its error, and the ``result`` when there is no next one."""

    def __init__(self, queue: Any, message_id: Any, fairness_key: Any) -> None:
        self.result: Explanation
        name = checks.queue_name(queue)
        if message_id is not None and fairness_key is not None:
            raise InvalidArgumentError(
                f"message_id={checks.shown(message_id)} and fairness_key={checks.shown(fairness_key)}: "
                "pass one of them, or neither"
            )
        wanted = None if message_id is None else parse_id(message_id)
        self._next: Request | None = Request(name, commands.Explain(wanted, checks.only_fairness_key(fairness_key)))
        self._asked = self._next
        self._not_found: MessageNotFoundError | None = None
        self._down: ShardUnavailableError | None = None

    def next_request(self) -> Request | None:
        """Return the next request; None when it is done."""
        request, self._next = self._next, None
        return request

    def answered(self, reply: commands.Explained | commands.ClusterStatus | commands.HostList) -> None:
        """Take in the answer to it."""
        if isinstance(reply, commands.HostList):
            self.result = self._without_leader(reply)
        elif isinstance(reply, commands.ClusterStatus):
            self.result = self._outage(reply.workers)
        else:
            self.result = explanation(reply)

    def refused(self, error: FilaError) -> None:
        """Take in the error of the request; raise it if it does not answer ``why``."""
        if self._down is not None:
            self.result = self._outage([])
        elif isinstance(error, ShardUnavailableError) and "shard" in error.details:
            self._down = error
            led_elsewhere = error.details.get("state") in {FOLLOWING, BEGINNING}
            self._next = Request("", commands.GetHosts() if led_elsewhere else commands.GetClusterStatus())
        elif isinstance(error, MessageNotFoundError) and self._not_found is not None:
            raise self._not_found
        elif isinstance(error, MessageNotFoundError) and "dead_letters" in error.details:
            self._not_found = error
            self._asked = self._next = Request(error.details["dead_letters"], self._asked.command)
        else:
            raise error

    def _without_leader(self, hosts: commands.HostList) -> Explanation:
        assert self._down is not None
        shard = self._down.details["shard"]
        copies = shard_copies(views.hosts(hosts))
        return self._outage([], shard_trouble(copies[shard]) if shard < len(copies) else None)

    def _outage(self, workers: list[commands.WorkerStatus], trouble: Risk | None = None) -> Explanation:
        assert self._down is not None
        shard = self._down.details["shard"]
        holders = (each for each in workers if shard in {*each.shards, *(outage.shard for outage in each.outages)})
        owner = next(holders, None)
        which = f": worker {owner.name!r} (pid {owner.pid}) is {owner.state}" if owner else ""
        text = (
            f"shard {shard} of queue {self._asked.queue!r} had no live worker{which}; "
            "it comes back by itself, its messages are on disk"
        )
        outage = self._down.details.get("state")
        if outage is not None:  # its worker lives, and has given a reason
            why = f"{trouble.text}; {trouble.action}" if trouble is not None else self._down.message
            text = f"queue {self._asked.queue!r} can't be served: {why}"
        details = {
            "queue": self._asked.queue,
            "shard": shard,
            "worker": owner.name if owner else None,
            "worker_state": owner.state if owner else None,
        }
        details |= {"shard_state": outage, "reason": self._down.details.get("reason")} if outage is not None else {}
        details |= {"shard_state": trouble.code} if trouble is not None else {}
        return Explanation(UNKNOWN, [Reason(ReasonCode.SHARD_DOWN.value, text, None, details)], None, None)
