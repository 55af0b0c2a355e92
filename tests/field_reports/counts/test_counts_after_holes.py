"""A queue with holes (cancelled, expired, acked in any order) does not count more than it has.

Source: nats-io/nats-server pull request 5655, nats-io/nats-server issue 5608
Right: after each step, the counts are those of what browse shows
"""

import random
from collections.abc import Callable
from functools import partial

from fila_cluster.testing import Fila


def counted(fila: Fila) -> tuple[int, int, int]:
    stats = fila.queue_stats("holes")
    return stats.pending, stats.delayed, stats.in_flight


def shown(fila: Fila) -> tuple[int, int, int]:
    states = [view.state for view in fila.browse("holes", limit=1000)]
    return states.count("pending"), states.count("delayed"), states.count("leased")


def test_counts_are_what_browse_shows(fila: Fila) -> None:
    chance = random.Random(5608)
    fila.create_queue("holes", max_attempts=3)
    held, ids = [], []
    for _ in range(300):
        what = chance.random()
        if what < 0.5:
            options = {
                "delay": chance.choice((0, 0, 5)),
                "ttl": chance.choice((None, 2)),
                "priority": chance.randrange(-2, 3),
            }
            ids.append(fila.enqueue("holes", b"x", fairness_key=f"k{chance.randrange(4)}", **options))  # type: ignore[arg-type]
        elif what < 0.65 and ids:
            chosen = ids.pop(chance.randrange(len(ids)))
            if chosen in {view.id for view in fila.browse("holes", limit=1000)}:
                fila.cancel("holes", chosen)
        elif what < 0.8:
            held += fila.receive("holes", 2)
        elif what < 0.95 and held:
            delivery = held.pop(chance.randrange(len(held)))
            settlements: list[Callable[[], None]] = [delivery.ack, delivery.nack, delivery.fail, partial(delivery.retry, 1)]
            chance.choice(settlements)()
        else:
            fila.clock.advance(1)
        assert counted(fila) == shown(fila)
    fila.ack(held)
    fila.purge_queue("holes")
    assert counted(fila) == shown(fila) == (0, 0, 0)
