"""The identities of a client, which follow from the secret of its session.

The router gives each session a secret that only the session's own client sees. Workers know the client by a hash of the
secret, from which the secret can't be found; people and other clients see a short hash of that hash.
"""

from hashlib import blake2b
from typing import Final

SESSION_BYTES: Final = 32
"""A session's secret."""

TAG_BYTES: Final = 4
"""The part of the secret that names the session in the headers of its requests. The other 28 bytes keep it secret."""


def client_of(session: bytes, key: bytes = b"") -> bytes:
    """Return the identity of the client that holds this secret: 16 bytes. ``key``: the hash of its API key, if it has one.

    So leases belong to the key that made them: the same secret with another key is another client.
    """
    return blake2b(session, digest_size=16, key=key).digest()


def client_name(client: bytes) -> str:
    """Return a client's name for people and for other clients: 8 hex digits that distinguish clients."""
    return blake2b(client, digest_size=4).hexdigest()
