"""The figures of a process: its metrics, and its copies of shards on replicated logs.

Their answers never wait: they may be asked for because a log is slow.
"""

from collections.abc import Callable

from fila_proto_zmq.commands import GetHosts, GetMetrics, HostList, HostWorker, Metrics, WorkerMetrics
from fila_worker.core.effects import ClientCall, answer
from fila_worker.core.measures import SPAN_NS, CountedHistogram
from fila_worker.core.metrics.meter import report
from fila_worker.core.shard import Shard
from fila_worker.process.feature import ProcessFeature


class ProcessMetrics(ProcessFeature):
    """The answers to :class:`GetMetrics` and :class:`GetHosts`, and the owner's measurements."""

    def __init__(self, name: str, started_ms: int) -> None:
        super().__init__()
        self.commands = {GetMetrics: self._metrics, GetHosts: self._hosts}
        self.name, self.started_ms = name, started_ms
        self.free_disk_bytes: int | None = None
        """As measured last; None: not measured yet."""
        self._cpu_ms = 0
        self.turn_ns = CountedHistogram(SPAN_NS)
        """How long turns took, from the first frame read to the last one sent. The owner has the clock and adds to it."""
        self.hosted: Callable[[], HostWorker | None] = lambda: None
        """Returns this process's copies of shards; None: without a replicated log."""

    def measured(self, free_disk_bytes: int, cpu_ms: int = 0, now_ms: int = 0) -> None:
        """Take in the free space on the disk, and the CPU time spent so far."""
        self._cpu_ms, self.free_disk_bytes = cpu_ms, free_disk_bytes

        def look(shard: Shard) -> None:
            shard.free_disk_bytes = free_disk_bytes
            shard.look_at_storage()

        self.process.each(now_ms, look)

    def on_open(self, shard: Shard, now_ms: int) -> None:
        """Give a shard the last figure, because the next one may come a second later."""
        shard.free_disk_bytes = self.free_disk_bytes

    def _metrics(self, call: ClientCall, command: GetMetrics) -> None:
        now_ms = call.now_ms
        shards = self.process.each(now_ms, lambda shard: report(shard, now_ms))
        worker = WorkerMetrics(self.name, self.started_ms, self._cpu_ms, self.turn_ns.wire(), shards, self.hosted())
        self.process.held.at_once.append(answer(call, command, Metrics([worker])))

    def _hosts(self, call: ClientCall, command: GetHosts) -> None:
        hosted = self.hosted()
        self.process.held.at_once.append(answer(call, command, HostList([] if hosted is None else [hosted])))
