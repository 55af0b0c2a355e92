"""``fila-cluster consume``."""

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
from fila_process.parent import handling

BATCH_MESSAGES = 100
PATIENCE_S = 30.0
"""How long one request waits when there is no other limit; then the next request follows."""
PAUSE_S = 0.5
"""Between two tries while the broker is away."""


@click.command()
@click.argument("queue")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N messages. Default: never.")
@click.option("--wait", type=DURATION, metavar="D", help="Stop when nothing has come for D: 0, 500ms, 30s, … Default: never.")
@click.option("--no-ack", is_flag=True, help="Only look: give everything back at the end.")
@click.pass_obj
def consume_command(invocation: Invocation, queue: str, count: int | None, wait: float | None, no_ack: bool) -> None:
    """Take messages out of QUEUE and print one JSON object a line for each.

    A message is acknowledged once its line is out. Ctrl-C stops it; messages that were not printed go back. Without --wait
    it continues after an outage of the broker.
    """
    stop = _Stop()
    patience = _Patience(wait)
    held = []
    with handling(stop.ask), invocation.connect() as client, suppress(KeyboardInterrupt):
        for batch in _batches(client, queue, count, stop, patience):
            click.echo("\n".join(map(write_delivery, batch)))
            if no_ack:
                held.append(batch)  # kept: a delivery that is dropped unsettled gives a warning
            else:
                _ack(client, batch, stop, patience)


class _Stop:
    """SIGINT and SIGTERM stop at once while no message is in hand, else after it is printed and acknowledged."""

    def __init__(self) -> None:
        self.asked = False
        self.nothing_in_hand = False

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        """Take one of the signals."""
        self.asked = True
        if self.nothing_in_hand:
            raise KeyboardInterrupt


class _Patience:
    """How long to wait for messages, at most ``wait_s``; without that limit also for a broker that was reached once."""

    def __init__(self, wait_s: float | None) -> None:
        self._wait_s = wait_s
        self._reached = False
        self._told = False

    @property
    def is_endless(self) -> bool:
        """Whether to wait for ever."""
        return self._wait_s is None

    @property
    def next_s(self) -> float:
        """How long the next request may wait; without a limit the first one only checks the broker and the queue."""
        if self._wait_s is not None:
            return self._wait_s
        return PATIENCE_S if self._reached else 0.0

    def relieve(self) -> None:
        """Note that the broker answered."""
        self._reached, self._told = True, False

    def bear(self, error: FilaError) -> None:
        """Wait a moment, or raise the error. A retry is reported once."""
        if not (error.retryable and self._reached and self.is_endless):
            raise error
        if not self._told:
            click.echo(f"{error}; trying again", err=True)
            self._told = True
        time.sleep(PAUSE_S)


def _ack(client: Client, batch: list[Delivery], stop: _Stop, patience: _Patience) -> None:
    """Acknowledge printed messages. Leases that ended meanwhile are not a failure: their messages come again."""
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
    """Return the deliveries of a batch that could not be acknowledged although their leases did not end, and the errors."""
    held, reasons = [], []
    for delivery, result in zip(batch, error.results, strict=True):
        if isinstance(result, FilaError) and not isinstance(result, LeaseExpiredError):
            held.append(delivery)
            reasons.append(result)
    return held, reasons


def _batches(client: Client, queue: str, count: int | None, stop: _Stop, patience: _Patience) -> Iterator[list[Delivery]]:
    """Yield batches until ``count`` messages have come, or none came in time, or a signal asks to stop."""
    remaining = count
    while remaining is None or remaining > 0:
        at_most = BATCH_MESSAGES if remaining is None else min(BATCH_MESSAGES, remaining)
        stop.nothing_in_hand = True  # before the request, so that no signal falls between the two
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
