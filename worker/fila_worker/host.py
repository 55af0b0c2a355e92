"""The shards of one process: frames in, frames out, one turn of each shard at a time.

No sockets and no clock here either, so that a test, or an application that embeds the broker, can drive it.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from fila_proto_zmq import runtime_config
from fila_proto_zmq.codec import decode_command
from fila_proto_zmq.commands import (
    Appoint,
    Appointed,
    Command,
    ConfigValues,
    Done,
    GetConfig,
    GetMetrics,
    Grants,
    ListConfig,
    ListQueues,
    MessagesTransferred,
    Metrics,
    Park,
    PutConfig,
    QueueList,
    Registered,
    Reply,
    SetConfig,
    TransferMessages,
    WorkerMetrics,
)
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, InvalidFrameError, ShardUnavailableError
from fila_proto_zmq.events import Event
from fila_proto_zmq.frames import check_version, unpack_header
from fila_proto_zmq.names import shard_of
from fila_worker.core.administration import list_queues
from fila_worker.core.effects import Answer, Call, Effect, Post, answer
from fila_worker.core.histogram import SPAN_NS, Histogram
from fila_worker.core.metering import report
from fila_worker.core.shard import Shard

Frame: TypeAlias = list[Any]
"""``[client id, header, routing key, body]``: bytes, the body perhaps a memoryview."""

OF_WORKERS: Final = 80
"""Opcodes from here on pass between the router and its workers, and between those."""

CONFIG_OWNER: Final = 0
"""The shard that judges and numbers changes of the runtime config."""

BETWEEN_SHARDS: Final = (TransferMessages, MessagesTransferred, Appoint, Appointed)
ONE_WAY: Final = (Grants, Park, *BETWEEN_SHARDS)
"""What nobody answers."""
OF_THE_CLUSTER: Final = (ListQueues, GetMetrics, SetConfig, GetConfig, ListConfig, PutConfig)
"""What the router asks, for itself or for a client, without the name of a queue."""

SHARD_CACHE_MAX: Final = 100_000
"""Queue names whose shard is remembered."""


class Host:
    """Several shards behind one link to the router."""

    def __init__(self, shards: Iterable[Shard], shards_total: int, now_ms: int = 0, name: str = "") -> None:
        self.shards = {shard.index: shard for shard in shards}
        self._shards_total = shards_total
        self._shard_of_queue: dict[str, Shard] = {}
        self._effects: list[Effect] = []
        self._between: list[Command] = []
        """What shards of this host say to each other, for the next turn."""
        self.notes: list[Event] = []
        """What happened on the shards, for the operator; whoever tells it takes it out."""
        self._name, self._started_ms, self._cpu_ms = name, now_ms, 0
        self.turn_ns = Histogram(SPAN_NS)
        """How long turns took, from the first frame read to the last one sent. Whoever has a clock observes it."""
        self._level(now_ms)

    def accept(self, frame: Frame, now_ms: int) -> None:
        """Carry out one frame. Its answer comes with :meth:`turn`."""
        if len(frame) != 4:
            return  # the router sends nothing else; there is nobody to tell
        client, raw_header, key, body = frame
        try:
            header = unpack_header(raw_header)
        except InvalidFrameError:
            return
        call = Call(client, header.request, key.decode(errors="replace"), now_ms)
        try:
            check_version(header)
            self._carry_out(call, decode_command(header, body))
        except FilaError as error:
            if client or header.request:  # else it is one of those that nobody waits for
                self._effects.append(Answer(call, header.opcode, error))

    def _carry_out(self, call: Call, command: Command) -> None:
        if call.client and command.opcode >= OF_WORKERS:
            raise InvalidFrameError(f"{type(command).__name__} is not for clients to say")
        if isinstance(command, ONE_WAY):
            self._heed(command, call.now_ms)
        elif isinstance(command, OF_THE_CLUSTER):
            self._effects.append(answer(call, command, self._reply(call, command)))
        else:
            self._shard(call.queue, command).apply(call, command)

    def _shard(self, queue: str, command: Command) -> Shard:
        shard = self._shard_of_queue.get(queue)
        if shard is None:
            shard = self._find_shard(queue, command)
            if len(self._shard_of_queue) >= SHARD_CACHE_MAX:
                self._shard_of_queue.clear()
            self._shard_of_queue[queue] = shard
        return shard

    def _find_shard(self, queue: str, command: Command) -> Shard:
        if not queue:
            raise InvalidArgumentError(f"{type(command).__name__} needs a queue name as its routing key")
        index = shard_of(queue, self._shards_total)
        if index not in self.shards:
            raise ShardUnavailableError(f"queue {queue!r} is on shard {index}, which is not here", details={"refused": True})
        return self.shards[index]

    # --- the cluster --------------------------------------------------------------------------------------------------

    def _reply(self, call: Call, command: Command) -> Reply:
        """Answer what is asked of the whole cluster, or of all its workers."""
        if isinstance(command, SetConfig):
            return self._owner_of_the_config().set_config(command, call.now_ms)
        if isinstance(command, GetConfig):
            value = runtime_config.read(command.key, self.config)
            return ConfigValues({} if value is None else {command.key: value})
        if isinstance(command, ListConfig):
            return ConfigValues(runtime_config.select(command.prefix, self.config))
        if isinstance(command, PutConfig):
            for shard in self.shards.values():
                shard.put_config(command.version, command.changes, command.whole, call.now_ms)
            return Done()
        if isinstance(command, GetMetrics):
            return Metrics([self._metrics(call.now_ms)])
        assert isinstance(command, ListQueues)
        queues = [queue for shard in self.shards.values() for queue in list_queues(shard, call, command).queues]
        return QueueList(sorted(queues, key=lambda queue: queue.name))

    def _metrics(self, now_ms: int) -> WorkerMetrics:
        shards = [report(shard, now_ms) for shard in self.shards.values()]
        return WorkerMetrics(self._name, self._started_ms, self._cpu_ms, self.turn_ns.wire(), shards)

    def _owner_of_the_config(self) -> Shard:
        owner = self.shards.get(CONFIG_OWNER)
        if owner is None:
            raise ShardUnavailableError(f"the config is set on shard {CONFIG_OWNER}, which is not here")
        return owner

    def _heed(self, command: Command, now_ms: int) -> None:
        """Take in what the bank, or another shard, says; what is for a shard that is not here was for its last host."""
        if isinstance(command, Park):
            for shard in self.shards.values():
                shard.park(command.parks, now_ms)
        elif isinstance(command, Grants):
            if command.shard in self.shards:
                self.shards[command.shard].granted(command, now_ms)
        elif isinstance(command, BETWEEN_SHARDS) and command.to_shard in self.shards:
            self.shards[command.to_shard].told(command, now_ms)

    @property
    def config_version(self) -> int:
        """The version of the runtime config here."""
        return max(shard.config_version for shard in self.shards.values())

    @property
    def config(self) -> dict[str, str]:
        """The runtime config as it is here."""
        return max(self.shards.values(), key=lambda shard: shard.config_version).config

    def parks(self) -> dict[str, int]:
        """The throttle keys that deliver nothing, with the times until when, Unix ms."""
        parks: dict[str, int] = {}
        for shard in self.shards.values():
            for key, until_ms in shard.parks().items():
                parks[key] = max(until_ms, parks.get(key, 0))
        return parks

    def _level(self, now_ms: int) -> None:
        """Bring all shards to the latest config among them: one may have been down, or elsewhere."""
        version, config, parks = self.config_version, dict(self.config), self.parks()
        for shard in self.shards.values():
            shard.put_config(version, config, True, now_ms)
            shard.park(parks, now_ms)

    def registers(self, now_ms: int) -> None:
        """The router is about to know this host anew: what was granted to its shards before is void."""
        for shard in self.shards.values():
            shard.new_session(now_ms)

    def registered(self, reply: Registered, now_ms: int) -> None:
        """Catch up with what the router knows."""
        for shard in self.shards.values():
            if reply.config is not None:
                shard.put_config(reply.config_version, reply.config, True, now_ms)
            shard.park(reply.parks, now_ms)

    def measured(self, free_disk_bytes: int, cpu_ms: int = 0) -> None:
        """So much room is left on the disk, and so much time was computed so far."""
        self._cpu_ms = cpu_ms
        for shard in self.shards.values():
            shard.free_disk_bytes = free_disk_bytes
            shard.look_at_storage()

    # --- turns --------------------------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> list[Effect]:
        """Do what is due, deliver and commit on every shard; returns what may be sent now."""
        effects, self._effects = self._effects, []
        between, self._between = self._between, []
        for command in between:
            with suppress(FilaError):  # as if it had come over the wire: nobody waits for an answer
                self._heed(command, now_ms)
        for shard in self.shards.values():
            shard.advance(now_ms)
            shard.deliver(now_ms)
            effects.extend(effect for effect in shard.commit() if not self._stays(effect))
            if shard.notes:
                self.notes += shard.notes
                shard.notes.clear()
        return effects

    def _stays(self, effect: Effect) -> bool:
        """Whether something is for a shard of this host; then it does not leave the process."""
        if not isinstance(effect, Post):
            return False
        command = effect.command
        if isinstance(command, Park):
            self._between.append(command)  # for the other shards here; and for all other workers
        elif isinstance(command, BETWEEN_SHARDS) and command.to_shard in self.shards:
            self._between.append(command)
            return True
        return False

    def next_due(self, now_ms: int) -> int | None:
        """Milliseconds until a turn has something to do without a frame; None: never."""
        if self._between:
            return 0
        return min((due for shard in self.shards.values() if (due := shard.next_due(now_ms)) is not None), default=None)

    @property
    def queues(self) -> int:
        """How many queues live here, dead letter queues not counted."""
        return sum(1 for shard in self.shards.values() for queue in shard.queues.values() if not queue.is_dead_letter)

    def close(self) -> None:
        """Flush and close all stores."""
        for shard in self.shards.values():
            shard.store.close()
