"""Salvaged messages as files that ``enqueue --file`` takes: one for each queue."""

import os
import time
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import click

from fila_cluster.cli.shared.jsonl import write_message
from fila_cluster.client.message import Message, utc
from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.limits import COST_MILLI_DEFAULT
from fila_proto_zmq.record import open_envelope, unpack_record
from fila_worker.check.salvage import Salvaged

_TTL_MS_MIN = 1


class SalvageFolder:
    """A new folder for salvaged messages. ``counts``: how many are in each file."""

    def __init__(self, path: Path) -> None:
        """Make the folder. Raises :class:`click.ClickException` if there is something in it."""
        self.path = path
        self.counts: Counter[str] = Counter()
        self.unreadable = 0
        """The messages whose records are there, and cannot be read."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            occupied = any(path.iterdir())
        except OSError as error:
            raise click.ClickException(f"cannot salvage to {path}: {error.strerror}") from None
        if occupied:
            raise click.ClickException(f"{path} is not empty: name a new folder for the salvaged messages")

    def write(self, shard: int, messages: Iterable[Salvaged]) -> None:
        """Write the messages of a shard."""
        now_ms = time.time_ns() // 1_000_000
        try:
            for name, group in groupby(messages, key=lambda each: _file_of(shard, each)):
                self._append(name, group, now_ms)
        except OSError as error:
            raise click.ClickException(f"cannot write to {self.path}: {error.strerror}") from None

    def _append(self, name: str, messages: Iterable[Salvaged], now_ms: int) -> None:
        descriptor = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            for salvaged in messages:
                try:
                    line = write_message(as_message(salvaged, now_ms))
                except InvalidFrameError:
                    self.unreadable += 1
                    continue
                file.write(line + "\n")
                self.counts[name] += 1


def _file_of(shard: int, message: Salvaged) -> str:
    """Return the file for a message. A name with a namespace has a slash, which stands as a percent sign and its number."""
    if message.queue is None:
        return f"shard-{shard:04d} lane-{message.lane}.jsonl"
    return message.queue.replace("/", "%2F") + ".jsonl"


def as_message(salvaged: Salvaged, now_ms: int) -> Message:
    """Return a message to enqueue again, with what is left of its times. Raises :class:`InvalidFrameError`."""
    record = unpack_record(salvaged.record)
    headers, payload = open_envelope(record.envelope)
    extension = record.extension
    message = Message(
        payload,
        headers or None,
        fairness_key=salvaged.fairness_key,
        weight=salvaged.weight,
        throttle_keys=salvaged.throttle_keys or None,
        priority=record.priority,
    )
    if extension.cost_milli != COST_MILLI_DEFAULT:
        message.cost = extension.cost_milli / 1000
    if salvaged.due_ms is not None and salvaged.due_ms > now_ms:
        message.deliver_at = utc(salvaged.due_ms)
    if extension.expires_ms is not None:
        message.ttl = max(_TTL_MS_MIN, extension.expires_ms - now_ms) / 1000
    if extension.lease_ms is not None:
        message.lease = extension.lease_ms / 1000
    return message
