"""Places: how many messages with a throttle key may be leased at a time, kept by the place bank on shard 0.

The two messages carry the state of accounts. Each side repeats what the other has not seen, so any of them may be lost, come
twice, or late.
"""

from fila_proto_zmq.commands.structs import Command, Struct


class PlaceAccount(Struct):
    """The places of a shard of a throttle key: totals since the account of this number began."""

    key: str
    number: int
    """The shard gives it. A later account of the same key has a larger one."""
    taken: int
    """Of a grant: granted."""
    returned: int
    short: bool = False
    """Of a grant: each place that becomes free goes back, because others wait for it, or too many are in use."""
    in_use: int = 0
    """Of a grant: the places that all shards have."""


class PlaceWant(Struct):
    """The places that a shard wants, for messages that need one of each of these keys. It holds until places are granted."""

    keys: list[str]
    count: int
    """0: none any more."""
    weight: int
    """Of the fairness keys that wait."""


class PlaceOpening(Struct):
    """A throttle key that is opened: all shards say how many places its leased messages need. ``version``: of the config."""

    key: str
    number: int
    version: int = 0


class ReportPlaces(Command):
    """Report the accounts and wants of a shard to the place bank. Answered with :class:`GrantPlaces` that says ``seen``."""

    opcode = 110
    to_shard: int
    from_shard: int
    serial: int
    """Larger than that of any frame before, of earlier openings of the shard, too."""
    seen: list[int]
    """The serials of the receiver's frames that were taken in since the last frame."""
    accounts: list[PlaceAccount]
    wants: list[PlaceWant]
    opened: list[PlaceOpening]
    """Openings with which the accounts of these keys agree."""


class GrantPlaces(Command):
    """Grant places to a shard. ``served``: wants that are over, with a grant. ``waiting``: wants for which no place is free."""

    opcode = 111
    to_shard: int
    from_shard: int
    serial: int
    seen: list[int]
    accounts: list[PlaceAccount]
    served: list[list[str]]
    waiting: list[list[str]]
    openings: list[PlaceOpening]
    hello: bool = False
    """Whether the bank has started, and lacks what was wanted before."""
