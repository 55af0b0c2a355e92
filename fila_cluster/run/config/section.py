"""What the sections of the settings share."""

from pydantic import BaseModel, ConfigDict

from fila_cluster.figures import duration_s

COUNT_MAX = 2**63 - 1
"""Larger numbers fit into no counter, and into no message to a worker."""

EVERY_MS_MIN = 1_000
"""Backups and checkpoints that follow each other faster than they are made would never end."""


class Section(BaseModel):
    """Base of the sections."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def milliseconds(value: object) -> object:
    """Return the milliseconds of a duration with a unit, as on the command line; leave the rest to the check for a number."""
    return round(1000 * duration_s(value)) if isinstance(value, str) else value
