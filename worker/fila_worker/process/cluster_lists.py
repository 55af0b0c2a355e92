"""The lists that the router joins from all workers: queues, schedules, and what clients have."""

from fila_proto_zmq.commands import (
    ClientsDescribed,
    DescribeClients,
    ListQueues,
    ListSchedules,
    Reply,
    joined,
    joined_schedules,
)
from fila_worker.core.effects import Call
from fila_worker.core.manage.queue_commands import list_queues
from fila_worker.core.schedules.schedules import list_schedules
from fila_worker.process.client_work import work_of
from fila_worker.process.feature import ProcessFeature


class ClusterLists(ProcessFeature):
    """This process's part of each list, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.commands = {ListQueues: self._queues, ListSchedules: self._schedules, DescribeClients: self._clients}

    def _queues(self, call: Call, command: ListQueues) -> Reply:
        return joined(self.process.each(call.now_ms, lambda shard: list_queues(shard, call, command)))

    def _schedules(self, call: Call, command: ListSchedules) -> Reply:
        return joined_schedules(self.process.each(call.now_ms, lambda shard: list_schedules(shard, call, command)))

    def _clients(self, call: Call, command: DescribeClients) -> Reply:
        process = self.process
        return ClientsDescribed(work_of(command.clients, process.shards.values(), process.heard_at_door))
