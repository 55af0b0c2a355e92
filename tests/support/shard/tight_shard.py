"""A shard with hardly any memory, which remembers what it delivered in the order in which it left."""

from dataclasses import replace
from unittest.mock import patch

from fila_proto_zmq.commands import Delivered
from fila_worker.core.effects import Answer, Effect, Push
from fila_worker.core.settings import DEFAULTS, Limits
from tests.support.shard.shard import Got, ShardHarness, opened


class RecordingHarness(ShardHarness):
    """Remembers what was delivered in the order in which it left the shard."""

    def __post_init__(self) -> None:
        self.delivered: list[tuple[bytes, bool, list[Got]]] = []
        super().__post_init__()

    def turn(self) -> None:
        turn = self.shard.turn

        def turn_and_note(now_ms: int) -> list[Effect]:
            effects = turn(now_ms)
            for effect in effects:
                if isinstance(effect, Push):
                    self.delivered.append((effect.client, True, opened(effect.delivered)))
                elif isinstance(effect, Answer) and isinstance(effect.reply, Delivered) and effect.reply.batches:
                    self.delivered.append((effect.client, False, opened(effect.reply)))
            return effects

        with patch.object(self.shard, "turn", turn_and_note):
            super().turn()


TIGHT = Limits(
    refill_messages_max=3, lane_disorder_messages_max=4, ledger_counts_max=40, ledger_fold_lanes_min=3, acked_messages_max=9,
    range_messages_min=2, key_table_part_max=4, warm_lanes_max=2, warm_small_lanes_max=2, warm_ahead_max=2, walk_keys_max=3,
    turn_effort=2, step_effort=1, enqueue_step_messages=4, turn_waits_max=2,
)  # fmt: skip
"""Hardly anything fits into memory, or into a turn."""

ROOMY = replace(TIGHT, turn_effort=DEFAULTS.turn_effort, step_effort=DEFAULTS.step_effort, enqueue_step_messages=100)
"""Hardly anything fits into memory, but a command is carried out in one turn: for models that know the order of deliveries."""

CHILLY = Limits(
    ledger_counts_max=5, ledger_fold_lanes_min=2, key_table_part_max=8, warm_lanes_max=1, warm_small_lanes_max=1, warm_ahead_max=3,
)  # fmt: skip
"""Nearly all fairness keys are cold."""
