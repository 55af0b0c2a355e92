"""The addresses of pages. A queue's name may have a slash, so it goes into the query, not into the path."""

from typing import Final, NamedTuple
from urllib.parse import urlencode

from fila_admission.permissions import ADMIN, CONSUME, EVERYTHING


class NavigationEntry(NamedTuple):
    """A page in the navigation."""

    path: str
    title: str
    icon: str
    needs: tuple[str, str | None] | None = None
    """The permission that the page needs: its kind, and its queue (None: any queue)."""
    of_hosts: bool = False
    """Whether it is for clusters of several hosts only."""


NAVIGATION: Final = (
    NavigationEntry("/", "Overview", "dashboard"),
    NavigationEntry("/hosts", "Hosts", "dns", of_hosts=True),
    NavigationEntry("/queues", "Queues", "view_list"),
    NavigationEntry("/templates", "Templates", "content_copy", (ADMIN, EVERYTHING)),
    NavigationEntry("/messages", "Messages", "mail", (CONSUME, None)),
    NavigationEntry("/dead-letters", "Dead letters", "report", (CONSUME, None)),
    NavigationEntry("/schedules", "Schedules", "schedule"),
    NavigationEntry("/hooks", "Hooks", "code"),
    NavigationEntry("/config", "Config", "tune", (ADMIN, EVERYTHING)),
    NavigationEntry("/connections", "Connections", "cable", (ADMIN, EVERYTHING)),
    NavigationEntry("/audit", "Audit", "history", (ADMIN, EVERYTHING)),
    NavigationEntry("/why", "Why", "help"),
)


def link(path: str, **query: str | None) -> str:
    """Return a page's address with those of ``query`` that are not None."""
    given = {name: text for name, text in query.items() if text is not None}
    return f"{path}?{urlencode(given)}" if given else path


def queue_page(name: str) -> str:
    """Return the address of one queue's page."""
    return link("/queue", name=name)
