"""A shard with hardly any memory, which remembers what it delivered in the order in which it left."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from fila_proto_zmq.commands import Delivered
from fila_worker.core import graveyard, lanes, ledger, reading, state
from fila_worker.core.effects import Answer, Effect, Push
from tests.support.shard import Got, ShardHarness, opened


class RecordingHarness(ShardHarness):
    """Remembers what was delivered in the order in which it left the shard."""

    def __post_init__(self) -> None:
        self.delivered: list[tuple[bytes, bool, list[Got]]] = []
        super().__post_init__()

    def turn(self) -> None:
        commit = self.shard.commit

        def commit_and_note() -> list[Effect]:
            effects = commit()
            for effect in effects:
                if isinstance(effect, Push):
                    self.delivered.append((effect.client, True, opened(effect.delivered)))
                elif isinstance(effect, Answer) and isinstance(effect.reply, Delivered) and effect.reply.batches:
                    self.delivered.append((effect.client, False, opened(effect.reply)))
            return effects

        with patch.object(self.shard, "commit", commit_and_note):
            super().turn()


@contextmanager
def tiny() -> Iterator[None]:
    """Hardly anything fits into memory."""
    with (
        patch.object(reading, "REFILL_MESSAGES", 3), patch.object(lanes, "SPILL_AT", 4), patch.object(state, "SPILL_AT", 4),
        patch.object(ledger, "FOLD_AFTER_COUNTS", 40), patch.object(graveyard, "MESSAGES_MAX", 9),
        patch.object(graveyard, "RUN_MIN", 2),
    ):  # fmt: skip
        yield
