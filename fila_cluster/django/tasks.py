"""The class of tasks of this backend: Django's, and what this broker can do for a tenant and for a limit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from fila_cluster.django.framework import Task

SCHEDULING: Final = ("fairness_key", "weight", "throttle_keys", "cost")
"""The options of ``Client.enqueue`` that a task may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilaTask(Task):  # type: ignore[misc] # it is found at run time
    """A task with options for the scheduler, as in ``task.using(fairness_key=tenant)``; None: as the backend's functions say.

    The decorator ``task`` of Django 6.0 takes none of them; those of Django 6.1 and of the package ``django-tasks`` do.
    """

    fairness_key: str | None = None
    weight: int | None = None
    throttle_keys: Sequence[str] | None = None
    cost: float | None = None

    def using(self, **changes: Any) -> "FilaTask":
        """Return a task with other options; None leaves one as it is."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})
