"""Batches over shards that talk: a callback's queue, queues with members, and what came of it."""

from typing import Any

from fila_proto_zmq.commands import AbandonBatch, Enqueue, Enqueued, OpenBatch, Reply, SealBatch, Verb
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.names import batch_id
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.callback_groups.owned import OwnedBatches
from fila_worker.core.settings import ShardSettings
from tests.support.shard.linked_shards import LinkedShards, name_on
from tests.support.shard.shard import ShardHarness

DONE = name_on(5, "done")
HERE, THERE, ELSEWHERE = name_on(5, "here"), name_on(3, "there"), name_on(1, "elsewhere")
SHARD_OF = {DONE: 5, HERE: 5, THERE: 3, ELSEWHERE: 1}
TOKEN = bytes(range(16))
ID = batch_id(DONE, TOKEN)
WAIT_MS = 1000


class Batched(LinkedShards):
    """Three shards. ``DONE`` gets callbacks; the other queues get members. ``HERE`` is on the shard of ``DONE``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(1, 3, 5, settings=options.pop("settings", None) or ShardSettings(), **options)
        for queue in SHARD_OF:
            self.of(queue).create(queue)

    def of(self, queue: str) -> ShardHarness:
        """The station of a queue."""
        return self[SHARD_OF[queue]]

    def begin(self, command: Any, queue: str, client: bytes = b"c1") -> int:
        """Send a command. Its answer may need other shards."""
        return self.of(queue).begin(command, queue, client)

    def answer(self, queue: str, number: int) -> Reply:
        """The answer to a command, after all that shards say to each other."""
        self.carry()
        self.of(queue).finish()
        answer = self.of(queue).late.pop(number)
        if isinstance(answer, FilaError):
            raise answer
        return answer

    def ask(self, command: Any, queue: str) -> Reply:
        return self.answer(queue, self.begin(command, queue))

    def open(self, token: bytes = TOKEN, *, payload: bytes = b"all done", name: str = "", **columns: Any) -> str:
        headers = columns.pop("headers", None)
        self.ask(OpenBatch(token, Enqueue([seal_envelope(payload, headers)], **columns), name), DONE)
        return batch_id(DONE, token)

    def seal(self, token: bytes = TOKEN) -> None:
        self.ask(SealBatch(token), DONE)
        self.carry()

    def abandon(self, token: bytes = TOKEN) -> None:
        self.ask(AbandonBatch(token), DONE)
        self.carry()

    def add(self, queue: str, *payloads: bytes, batch: str = ID, **columns: Any) -> Enqueued:
        reply = self.ask(Enqueue([seal_envelope(payload) for payload in payloads], batch=batch, **columns), queue)
        assert isinstance(reply, Enqueued)
        return reply

    def settle_all(self, queue: str, verb: Verb = Verb.ACK, count: int = 99) -> int:
        """Settle what is pending; return how many."""
        got = self.of(queue).receive(count, queue)
        self.of(queue).settle(verb, got, queue)
        self.carry()
        return len(got)

    def callbacks(self) -> list[tuple[bytes, dict[str, str]]]:
        """The payloads and headers of what is pending in ``DONE``; it stays there."""
        got = self[5].receive(99, DONE)
        self[5].settle(Verb.RELEASE, got, DONE)
        return [(each.payload, each.headers) for each in got]

    def counts(self) -> list[tuple[int, int, int, int]]:
        """What the callbacks say: total, acked, dead, removed."""
        names = ("total", "acked", "dead", "removed")
        return [tuple(int(headers[f"fila-batch-{name}"]) for name in names) for _, headers in self.callbacks()]  # type: ignore[misc]

    def nothing_is_left(self) -> bool:
        """Whether no shard keeps anything of a batch, but that it has ended."""
        stations = self.stations.values()
        return not any(
            each.shard.batch_parts.parts or each.shard.batch_parts.asks or each.shard.part(OwnedBatches).batches
            for each in stations
        )
