"""``fila-cluster consume``."""

import signal
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

import click

from fila_cluster import Client, Delivery
from fila_cluster.cli.durations import DURATION
from fila_cluster.cli.jsonl import write_delivery
from fila_cluster.cli.session import Session

BATCH_MESSAGES = 100
PATIENCE_S = 30.0
"""How long one request waits when there is no other limit; then the next one does."""


@click.command()
@click.argument("queue")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N messages. Default: never.")
@click.option("--wait", type=DURATION, metavar="D", help="Stop when nothing has come for D: 0, 500ms, 30s, … Default: never.")
@click.option("--no-ack", is_flag=True, help="Only look: give everything back at the end.")
@click.pass_obj
def command(session: Session, queue: str, count: int | None, wait: float | None, no_ack: bool) -> None:
    """Take messages out of QUEUE and print one JSON object a line for each.

    A message is acknowledged once its line is out. Ctrl-C stops it; what was not printed by then goes back.
    """
    stop = _Stop()
    held = []
    with session.connect() as client, suppress(KeyboardInterrupt):
        for batch in _batches(client, queue, count, wait, stop):
            click.echo("\n".join(map(write_delivery, batch)))
            if no_ack:
                held.append(batch)  # a delivery that is let go of unsettled is reported as a mistake
            else:
                client.ack(batch)


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


def _batches(client: Client, queue: str, count: int | None, wait: float | None, stop: _Stop) -> Iterator[list[Delivery]]:
    """What comes, until it is ``count`` messages, or none for ``wait`` seconds, or until told to stop."""
    remaining = count
    while remaining is None or remaining > 0:
        at_most = BATCH_MESSAGES if remaining is None else min(BATCH_MESSAGES, remaining)
        stop.nothing_in_hand = True  # before the question, lest a signal fall between the two
        if stop.asked:
            return
        batch = client.receive(queue, at_most, wait=PATIENCE_S if wait is None else wait)
        stop.nothing_in_hand = False
        if batch:
            yield batch
        elif wait is not None:
            return
        if remaining is not None:
            remaining -= len(batch)
