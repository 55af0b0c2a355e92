"""``fila-cluster consume``."""

import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

import click

from fila_cluster import Client, Delivery
from fila_cluster.cli.shared.invocation import Invocation
from fila_cluster.cli.shared.jsonl import write_delivery
from fila_cluster.cli.shared.parameters import DURATION
from fila_cluster.errors import BatchError, FilaError, LeaseExpiredError

BATCH_MESSAGES = 100
PATIENCE_S = 30.0
"""How long one request waits when there is no other limit; then the next one does."""
PAUSE_S = 0.5
"""Between two tries while the broker is away."""


@click.command()
@click.argument("queue")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N messages. Default: never.")
@click.option("--wait", type=DURATION, metavar="D", help="Stop when nothing has come for D: 0, 500ms, 30s, … Default: never.")
@click.option("--no-ack", is_flag=True, help="Only look: give everything back at the end.")
@click.pass_obj
def command(invocation: Invocation, queue: str, count: int | None, wait: float | None, no_ack: bool) -> None:
    """Take messages out of QUEUE and print one JSON object a line for each.

    A message is acknowledged once its line is out. Ctrl-C stops it; what was not printed by then goes back. Without --wait it
    goes on when the broker was away for a while.
    """
    stop = _Stop()
    patience = _Patience(wait)
    held = []
    with invocation.connect() as client, suppress(KeyboardInterrupt):
        for batch in _batches(client, queue, count, stop, patience):
            click.echo("\n".join(map(write_delivery, batch)))
            if no_ack:
                held.append(batch)  # a delivery that is let go of unsettled is reported as a mistake
            else:
                _ack(client, batch, stop, patience)


class _Stop:
    """SIGINT and SIGTERM: at once while there is nothing in hand, else when that is printed and acknowledged."""

    def __init__(self) -> None:
        self.asked = False
        self.nothing_in_hand = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self.nothing_in_hand:
            raise KeyboardInterrupt


class _Patience:
    """How long to wait for messages, at most ``wait_s``; and without that limit for the broker, too, once it was reached."""

    def __init__(self, wait_s: float | None) -> None:
        self._wait_s = wait_s
        self._reached = False
        self._told = False

    @property
    def is_endless(self) -> bool:
        """Whether no message is no reason to end."""
        return self._wait_s is None

    @property
    def next_s(self) -> float:
        """How long the next request may wait; without a limit the first one only finds out whether there is a broker, and the queue."""
        if self._wait_s is not None:
            return self._wait_s
        return PATIENCE_S if self._reached else 0.0

    def relieve(self) -> None:
        """The broker answered."""
        self._reached, self._told = True, False

    def bear(self, error: FilaError) -> None:
        """Wait a moment, or raise the error. That it goes on is said once."""
        if not (error.retryable and self._reached and self.is_endless):
            raise error
        if not self._told:
            click.echo(f"{error}; trying on", err=True)
            self._told = True
        time.sleep(PAUSE_S)


def _ack(client: Client, batch: list[Delivery], stop: _Stop, patience: _Patience) -> None:
    """Acknowledge what was printed. Leases that ended meanwhile are no failure: their messages come again."""
    while batch:
        try:
            client.ack(batch)
        except BatchError as error:
            batch, reasons = _still_held(batch, error)
            if batch and stop.asked:
                raise
            if batch:
                patience.bear(reasons[0])
        else:
            patience.relieve()
            return


def _still_held(batch: list[Delivery], error: BatchError) -> tuple[list[Delivery], list[FilaError]]:
    """Return what of a batch could not be acknowledged although its lease did not end, and why."""
    held, reasons = [], []
    for delivery, result in zip(batch, error.results, strict=True):
        if isinstance(result, FilaError) and not isinstance(result, LeaseExpiredError):
            held.append(delivery)
            reasons.append(result)
    return held, reasons


def _batches(client: Client, queue: str, count: int | None, stop: _Stop, patience: _Patience) -> Iterator[list[Delivery]]:
    """Yield what comes, until it is ``count`` messages, or none for as long as patience lasts, or until told to stop."""
    remaining = count
    while remaining is None or remaining > 0:
        at_most = BATCH_MESSAGES if remaining is None else min(BATCH_MESSAGES, remaining)
        stop.nothing_in_hand = True  # before the question, lest a signal fall between the two
        if stop.asked:
            return
        try:
            batch = client.receive(queue, at_most, wait=patience.next_s)
        except FilaError as error:
            patience.bear(error)
            continue
        stop.nothing_in_hand = False
        patience.relieve()
        if batch:
            yield batch
        elif not patience.is_endless:
            return
        if remaining is not None:
            remaining -= len(batch)
