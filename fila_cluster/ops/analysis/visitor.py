"""Who looks at a page: an API key with its rights, and the client that acts with them. Without authentication there is none."""

from typing import Final, Protocol

from fila_admission.permissions import Permissions
from fila_cluster import AsyncClient

SCOPE_KEY: Final = "fila_visitor"
"""Where a request's ASGI scope has its :class:`Visitor`."""


CLICK_S_MAX: Final = 10.0
"""How long somebody who clicked waits for the broker."""


class KeyInUse(Protocol):
    """An API key that somebody is logged in with."""

    @property
    def client(self) -> AsyncClient:
        """A client that has the key: the broker decides what it may do."""
        ...

    @property
    def name(self) -> str:
        """The key's name."""
        ...

    @property
    def permissions(self) -> Permissions:
        """What it may do, as the router said last."""
        ...

    holds: int
    """How much its client holds for others, and must not be closed for: leases and requests of the HTTP door."""

    @property
    def ended(self) -> bool:
        """Whether it has been revoked, has expired, or nobody is logged in with it any more."""
        ...


class Visitor(Protocol):
    """One login."""

    @property
    def key(self) -> KeyInUse:
        """The key that it was made with."""
        ...

    async def check(self) -> None:
        """Raise :class:`UnauthenticatedError` once the login or its key has ended."""
        ...
