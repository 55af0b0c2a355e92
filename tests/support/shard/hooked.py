"""A shard whose queue has hooks, with real Lua."""

from fila_proto_zmq.commands import Enqueue, Enqueued, QueueOptions, UpdateQueue
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.settings import ShardSettings
from tests.support.shard.shard import ShardHarness

TENANT = "function on_enqueue(msg) return { fairness_key = msg.headers.tenant } end"
PATIENT = ShardSettings(consumer_timeout_ms=1 << 40)
"""Consumers live as long as a test."""


def on_enqueue(body: str) -> str:
    """The hook with this body."""
    return f"function on_enqueue(msg) {body} end"


def on_failure(body: str) -> str:
    """The hook with this body."""
    return f"function on_failure(msg) {body} end"


def hooked(**options: object) -> ShardHarness:
    """A shard with a queue ``q`` that has these options."""
    shard = ShardHarness(settings=PATIENT)
    shard.create(**options)  # type: ignore[arg-type]
    return shard


def send(shard: ShardHarness, *headers: dict[str, str], **columns: object) -> None:
    """Enqueue messages with these headers; all are taken in."""
    envelopes = [seal_envelope(b"payload", each) for each in headers]
    reply = shard.ask(Enqueue(envelopes, **columns))  # type: ignore[arg-type]
    assert isinstance(reply, Enqueued)
    assert (reply.count, reply.faults) == (len(headers), [])


def keys(shard: ShardHarness) -> list[str]:
    """Of the messages that are ready, in the order of their enqueues."""
    return [each.key for each in sorted(shard.receive(99), key=lambda each: each.record.id_low)]


def update(shard: ShardHarness, **options: object) -> None:
    """Change these options of ``q``."""
    shard.ask(UpdateQueue(QueueOptions(**options), list(options)))  # type: ignore[arg-type]
