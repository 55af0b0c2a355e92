"""Shards that talk: a linked brings what one posts to the other, and loses or repeats frames as a test wants it.

Frames travel as bytes, as they do between processes. The clock of all stations is one.
"""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import count

from fila_proto_zmq.codec import decode_command
from fila_proto_zmq.commands import Command, CreateQueue, QueueOptions, Verb
from fila_proto_zmq.frames import unpack_header
from fila_proto_zmq.names import shard_of
from fila_worker.core.effects import Post
from fila_worker.core.hooks import HookCompiler
from fila_worker.core.settings import ShardSettings
from fila_worker.core.store import Store
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.shard import SHARDS, ShardHarness, compile_lua


def name_on(shard: int, prefix: str = "q") -> str:
    """A queue name that belongs to this shard."""
    return next(name for number in count() if shard_of(name := f"{prefix}{number}", SHARDS) == shard)


def once(command: Command) -> int:
    """How often a frame arrives, usually."""
    return 1


class LinkedShards:
    """Stations by shard, and the road between them. ``copies`` says how often a frame arrives; 0: it is lost."""

    def __init__(
        self,
        *shards: int,
        settings: ShardSettings | None = None,
        compile_hooks: HookCompiler = compile_lua,
        stores: Mapping[int, Store] | None = None,
        total: int = SHARDS,
        now_ms: int = 1_000_000,
    ) -> None:
        self.stations = {
            index: ShardHarness(
                (stores or {}).get(index) or MemoryStore(),
                settings or ShardSettings(),
                now_ms,
                compile_hooks=compile_hooks,
                index=index,
                shards=total,
            )
            for index in shards
        }
        self.copies: Callable[[Command], int] = once
        self.seen: list[Command] = []
        """All that was posted, lost or not."""
        self.road: deque[Command] = deque()
        self.stopped: set[int] = set()
        """Shards that are away: what is for them is lost."""

    def __getitem__(self, shard: int) -> ShardHarness:
        return self.stations[shard]

    def carry(self) -> None:
        """Bring everything that was posted where it belongs, and what follows from it, until no shard has more to send."""
        self.collect()
        while self.road:
            self.deliver(self.road.popleft())
            self.collect()

    def collect(self) -> None:
        """Take up what was posted."""
        for station in self.stations.values():
            for post in station.posted:
                command = as_it_arrives(post)
                self.seen.append(command)
                self.road.extend([command] * self.copies(command))
            station.posted.clear()

    def deliver(self, command: Command) -> None:
        """Hand one frame over, if its receiver is there."""
        to_shard = getattr(command, "to_shard", None)
        if to_shard not in self.stations or to_shard in self.stopped:
            return
        station = self.stations[to_shard]
        station.shard.on_peer_message(command, station.now_ms)
        station.turn()

    def pass_time(self, milliseconds: int) -> None:
        """Move all clocks, a second at a time at most, and let everybody talk."""
        while milliseconds > 0:
            step = min(milliseconds, 1000)
            milliseconds -= step
            for station in self.stations.values():
                station.now_ms += step
            for index in self.stations.keys() - self.stopped:
                self.stations[index].pass_time(0)
            self.carry()


def as_it_arrives(post: Post) -> Command:
    """A command over the wire and back."""
    header, _, body = post.frames()
    return decode_command(unpack_header(header), body)


# --- dead letters that go to another shard ----------------------------------------------------------------------------

SOURCE, TARGET = name_on(3), name_on(5)


def dead_letters_elsewhere() -> LinkedShards:
    """``SOURCE`` on shard 3 sends its dead letters to ``TARGET`` on shard 5."""
    linked = LinkedShards(3, 5)
    linked[5].create(TARGET)
    linked[3].send(CreateQueue(QueueOptions(dead_letter=TARGET)), SOURCE)
    linked.carry()
    assert SOURCE in linked[3].shard.queues
    linked.seen.clear()
    return linked


def fail(linked: LinkedShards, *payloads: bytes, **columns: object) -> list[str]:
    """Make dead letters of ``SOURCE``; returns their ids."""
    ids = linked[3].enqueue(*payloads, queue=SOURCE, **columns)  # type: ignore[arg-type]
    linked[3].settle(Verb.FAIL, linked[3].receive(len(payloads), SOURCE), SOURCE, error="boom")
    return ids


def letters(shard: ShardHarness, count: int = 99, queue: str = TARGET) -> list[bytes]:
    """The payloads of what is pending in a queue; it stays there."""
    got = shard.receive(count, queue)
    shard.settle(Verb.RELEASE, got, queue)
    return [each.payload for each in got]
