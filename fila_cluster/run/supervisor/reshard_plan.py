"""The plan of an unfinished reshard: a file in the data directory, from which the next run continues."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from fila_cluster.run.supervisor import CannotStartError
from fila_process.files import remove, write_whole

PLAN_FILE = "reshard.json"
FORMAT = 1


class ReshardPhase(StrEnum):
    """The present phase. The old shards are whole until ``SWITCH``, and the new ones from ``SWITCH`` on."""

    COPY = "copy"
    """The new shards are built beside the old ones."""
    SWITCH = "switch"
    """The new shards are complete, and take the places of the old ones."""
    CLEAN = "clean"
    """The new shards are in their places. The old ones are removed."""


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """The numbers of shards. ``queues``, ``messages`` and ``size_bytes``: of the new shards, once complete."""

    before: int
    after: int
    phase: ReshardPhase = ReshardPhase.COPY
    queues: int = 0
    messages: int = 0
    size_bytes: int = 0


def read_plan(data_dir: Path) -> ReshardPlan | None:
    """Return the plan of an unfinished reshard, or None. Raise :class:`CannotStartError` if it can't be read."""
    file = data_dir / PLAN_FILE
    try:
        content = json.loads(file.read_text())
        found = content.pop("format")
        plan = ReshardPlan(**content | {"phase": ReshardPhase(content["phase"])}) if found == FORMAT else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CannotStartError(f"{file} is damaged: restore it from a backup") from None
    if plan is None:
        raise CannotStartError(f"{file} has format {found}, this version reads {FORMAT}: use a matching version")
    return plan


def write_plan(data_dir: Path, plan: ReshardPlan) -> None:
    """Make a plan durable. Raise :class:`OSError`."""
    write_whole(data_dir / PLAN_FILE, [json.dumps({"format": FORMAT, **asdict(plan)}).encode()])


def remove_plan(data_dir: Path) -> None:
    """Remove the plan durably: the reshard is finished or cancelled. Raise :class:`OSError`."""
    remove(data_dir / PLAN_FILE)


def refuse_unfinished(data_dir: Path) -> None:
    """Raise :class:`CannotStartError` if a reshard of a data directory is not finished."""
    plan = read_plan(data_dir)
    if plan is not None:
        cancel = ", or cancel it with --cancel" if plan.phase == ReshardPhase.COPY else ""
        raise CannotStartError(
            f"the change of {data_dir} from {plan.before} to {plan.after} shards is not finished: run "
            f"`fila-cluster reshard --data-dir {data_dir} --shards {plan.after}` again{cancel}"
        )
