"""What a client knows of queues with several partitions: how many they have, and whose turn it is.

A client knows nothing of a queue at first, and asks for it by its name. If the queue has partitions, the broker refuses that
and names their number. So the other queues cost nothing.
"""

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final

from fila_cluster.client.protocol.encoding import Row
from fila_cluster.client.protocol.partitions.shares import Shares
from fila_proto_zmq.errors import FilaError, PartitionedError, ShardUnavailableError
from fila_proto_zmq.names import partition_name, root_name, whole_queue
from fila_proto_zmq.partitions import BY_KEY, Plan, partition_of

REPLAN_S: Final = 0.01
"""How long a call waits before it follows a queue the second time, and twice as long each time: a shard may lag behind another."""
REPLAN_S_MAX: Final = 0.25

PLANS_MAX: Final = 10_000
"""Queues with partitions that a client remembers."""

DEFAULT_KEY: Final = "default"
_DEDUP_ID: Final = 9
"""The place of the dedup id among the columns of a row."""


def pauses(timeout_s: float) -> Iterator[float]:
    """Yield how long to wait before a call follows its queue, whose partitions are others each time: in all, its timeout."""
    yield 0.0
    pause_s = min(REPLAN_S, timeout_s)
    while pause_s > 0:
        yield pause_s
        timeout_s -= pause_s
        pause_s = min(2 * pause_s, REPLAN_S_MAX, timeout_s)


class Plans:
    """The plans by queue. A dead letter queue has the plan of its queue."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._plans: dict[str, Plan] = {}
        self._shares: dict[str, Shares] = {}
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._plans)

    def get(self, queue: str) -> Plan | None:
        """Return the plan of a queue; None: it has no partitions, as far as is known."""
        return self._plans.get(_name(queue)) if self._plans else None

    def learn(self, queue: str, error: FilaError) -> Plan | None:
        """Return the plan that the broker's refusal names; None if it names none."""
        root = _name(queue)
        self._shares.pop(root, None)
        if not isinstance(error, PartitionedError) or not isinstance(error.details.get("partitions"), int):
            self._plans.pop(root, None)
            return None
        if len(self._plans) >= PLANS_MAX:
            self._plans.clear()
            self._shares.clear()
        plan = self._plans[root] = _plan_in(error.details)
        return plan

    def judged(self, queue: str, error: PartitionedError) -> FilaError:
        """Return a refusal as it is; or, if its shard knows an earlier number of partitions than this client, one that passes."""
        known, version = self._plans.get(_name(queue)), _plan_in(error.details).version
        if known is None or not version or version >= known.version:  # without one it is about a queue that is not there
            return error
        return ShardUnavailableError(
            f"the shard of {queue!r} does not know yet that the queue has {known.partitions} partitions",
            details={"refused": True},
        )

    def forget(self, queue: str) -> None:
        """Forget the plan of a queue: it is created anew, or gone."""
        self._plans.pop(_name(queue), None)
        self._shares.pop(_name(queue), None)

    def shares(self, queue: str, plan: Plan) -> Shares:
        """Return the shares of the partitions among the receives of this client."""
        shares = self._shares.get(queue)
        if shares is None or shares.partitions != len(plan.all):
            shares = self._shares[queue] = Shares(len(plan.all), self._random)
        return shares

    def entrance(self, queue: str) -> str:
        """Return the queue that takes in what concerns all of it: its first partition, or the queue itself."""
        return queue if self.get(queue) is None else partition_name(queue, 0)

    def place(self, queue: str, row: Row) -> str:
        """Return the queue or the partition that a message goes to."""
        if not self._plans:
            return queue
        plan = self._plans.get(queue)
        return (
            queue
            if plan is None
            else partition_name(queue, self.partition(plan, row[1][0] or DEFAULT_KEY, row[1][_DEDUP_ID]))
        )

    def partition(self, plan: Plan, key: str, dedup_id: str) -> int:
        """Return the partition of a message: of its key; or of its dedup id, or else the next one."""
        if plan.spread == BY_KEY:
            return partition_of(key, plan.partitions)
        if dedup_id:
            return partition_of(dedup_id, plan.partitions)
        self._turn += 1
        return self._turn % plan.partitions


def _plan_in(details: Mapping[str, Any]) -> Plan:
    numbers = (details.get(name) for name in ("partitions", "earlier", "held", "version"))
    partitions, *others = (number if isinstance(number, int) and number > 0 else 0 for number in numbers)
    return Plan(max(1, partitions), str(details.get("spread") or BY_KEY), *others)


def _name(queue: str) -> str:
    return root_name(whole_queue(queue))
