"""The ``OPTIONS`` of the backend, read once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from fila_cluster import Client
from fila_cluster.client.lazy import LazyClient
from fila_cluster.django.tasks import SCHEDULING

Rule = Callable[[Any, list[Any], dict[str, Any]], Any]
"""Returns an option's value for ``(task, args, kwargs)``; None leaves it out."""


@dataclass(frozen=True)
class Options:
    """``OPTIONS``. ``fairness_key``, ``weight``, ``throttle_keys`` and ``cost`` are functions, or paths of functions."""

    endpoint: str | None = None
    api_key: str | None = None
    server_key: str | None = None
    timeout: float = 5.0
    namespace: str | None = None
    queue_options: Mapping[str, Any] = field(default_factory=dict)
    max_attempts: int = 1
    """How often a task that raises is run."""
    retry_delay: float = 1.0
    """Seconds before its second attempt; each later one waits twice as long."""
    retry_delay_max: float = 3600.0
    fairness_key: str | Rule | None = None
    weight: str | Rule | None = None
    throttle_keys: str | Rule | None = None
    cost: str | Rule | None = None
    client: Client | None = None
    """A client to use instead of one of its own: for tests."""
    dashboard: str | None = None
    """The address of the dashboard, for links of the admin's pages."""

    def rules(self) -> dict[str, Rule]:
        """Return the functions, by the option that they give."""
        found = {name: getattr(self, name) for name in SCHEDULING}
        return {
            name: import_string(rule) if isinstance(rule, str) else rule for name, rule in found.items() if rule is not None
        }

    def retry_after(self, attempts: int) -> float:
        """Return the pause after so many failed attempts, in seconds."""
        return min(self.retry_delay_max, self.retry_delay * 2.0 ** min(attempts - 1, 30))

    def lazy(self) -> LazyClient:
        """Return the client of this process for these settings, shared by the backends that Django makes for each thread."""
        if self.client is not None:
            return LazyClient(self.client)
        return _client(self.endpoint, self.api_key, self.server_key, self.timeout)


def read(alias: str, given: Mapping[str, Any]) -> Options:
    """Return the options of a backend, or raise :class:`ImproperlyConfigured` for an unknown one."""
    known = {each.name for each in fields(Options)}
    unknown = sorted(given.keys() - known)
    if unknown:
        raise ImproperlyConfigured(
            f"TASKS[{alias!r}]['OPTIONS'] has no option {unknown[0]!r}: there are {', '.join(sorted(known))}"
        )
    options = Options(**given)
    for name in ("endpoint", "api_key", "server_key", "namespace"):
        value = getattr(options, name)
        if value is not None and not isinstance(value, str):
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]['OPTIONS'][{name!r}] is a {type(value).__name__}: use a str; several endpoints have "
                "commas between"
            )
    if not isinstance(options.max_attempts, int) or options.max_attempts < 1:
        raise ImproperlyConfigured(
            f"TASKS[{alias!r}]['OPTIONS']['max_attempts'] is {options.max_attempts!r}: use a whole number from 1"
        )
    return options


@lru_cache(maxsize=64)
def _client(endpoint: str | None, api_key: str | None, server_key: str | None, timeout: float) -> LazyClient:
    return LazyClient(endpoint=endpoint, api_key=api_key, server_key=server_key, timeout=timeout)
