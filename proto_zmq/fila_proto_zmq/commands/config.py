"""The runtime config."""

from collections.abc import Iterable

from fila_proto_zmq.commands.structs import Command, Reply, Struct
from fila_proto_zmq.limits import LIST_THROTTLES_MAX, THROTTLE_USERS_SHOWN


class ConfigChange(Reply):
    """A new version of the runtime config: what changed (None: deleted), and whether the key had a value before."""

    version: int
    changes: dict[str, str | None]
    existed: bool


class SetConfig(Command):
    """Set a key of the runtime config, or delete it (``value`` None). Answered once every live shard has it."""

    opcode, reply = 70, ConfigChange
    key: str
    value: str | None
    by: str = ""
    """The name of the API key that asks; the router sets it."""


class ConfigEdit(Struct):
    """A change that was made: one version of the runtime config. The values are as the key was spelled; None: it had none."""

    version: int
    at_ms: int
    by: str
    """The name of the API key; empty: the cluster has no authentication."""
    key: str
    old: str | None
    new: str | None


class ConfigHistory(Reply):
    """Changes, the latest first, and whether there are earlier ones."""

    edits: list[ConfigEdit]
    more: bool = False


class ListConfigHistory(Command):
    """Ask for the changes of the runtime config that are remembered: the latest thousand, fewer if their values are large."""

    opcode, reply = 77, ConfigHistory
    key: str | None = None
    """Only changes of this key; None: of all."""
    before: int = 0
    """Only versions before this one; 0: from the latest on."""
    limit: int = 100
    """1 to 100. A page may be shorter, also if more follow."""


class UndoConfig(Command):
    """Set the key of a change back to its value before, as a new version. Answered like :class:`SetConfig`."""

    opcode, reply = 78, ConfigChange
    version: int
    force: bool = False
    """Also if the key was changed since."""
    by: str = ""
    """The name of the API key that asks; the router sets it."""


class ConfigValues(Reply):
    """Keys of the runtime config with their values."""

    values: dict[str, str]


class GetConfig(Command):
    """Ask for one key (``values`` is empty if it has no value)."""

    opcode, reply = 71, ConfigValues
    key: str


class ListConfig(Command):
    """Ask for all keys that start with ``prefix``."""

    opcode, reply = 72, ConfigValues
    prefix: str = ""


class ThrottleStats(Struct):
    """The limits that hold for a throttle key, or for a pattern of keys, and what waits for it."""

    key: str
    rate: float | None = None
    """Tokens a second; None: no limit."""
    burst: float | None = None
    tokens: float | None = None
    """What its bucket holds, by the shard's last count."""
    concurrency: int | None = None
    """Messages that may be leased together, in the whole cluster; None: no limit."""
    in_use: int = 0
    """With a concurrency: messages that are, of this shard's count or of all shards' once they are joined. In the statistics
    of a queue: those of the cluster, as the shard last heard."""
    waiting: int = 0
    """Messages that a consumer could have, but for this key or another one of theirs; of very many some are not counted."""
    rate_min: float | None = None
    """The least to which deferrals lower the rate; None: they do not."""
    rate_in_force: float | None = None
    """What they have left of it, by the bank's last count."""


class ThrottleHolder(Struct):
    """A leased message of a throttle key."""

    message_id: str
    queue: str
    fairness_key: str
    consumer: str
    """The client's name, or the reservation's."""
    since_ms: int
    """When it was leased, Unix ms."""


class ThrottleWaiter(Struct):
    """A fairness key whose messages wait for a throttle key. ``pending``: how many."""

    queue: str
    fairness_key: str
    pending: int


class ThrottleList(Reply):
    """Throttle keys with a limit, by name: one shard's count, or the cluster's once the router has joined them."""

    throttles: list[ThrottleStats]
    next: str = ""
    """After which key the next page begins; empty: this is the last page. A page may be empty, and others follow."""
    holders: list[ThrottleHolder] = []
    """Of one key: the messages that are leased for longest, at most :data:`~fila_proto_zmq.limits.THROTTLE_USERS_SHOWN`."""
    waiters: list[ThrottleWaiter] = []
    """Of one key: the fairness keys with the most messages that wait, as many at most."""


class ListThrottles(Command):
    """Ask for the throttle keys that start with ``prefix`` and have a limit: those with entries of their own, patterns among
    them, and those in use that a pattern limits. Routing key empty: all workers are asked."""

    opcode, reply = 53, ThrottleList
    prefix: str = ""
    after: str = ""
    """Only those after this key, ``next`` of the page before."""
    exact: bool = False
    """Only the key ``prefix`` itself, whether it has limits or not, with who holds it and who waits for it."""


def joined_throttles(lists: Iterable[ThrottleList]) -> ThrottleList:
    """Join one page of each shard, up to the first key after which one may lack something.

    The least number of tokens is right: that of a shard long without a request is old.
    """
    lists = list(lists)
    found: dict[str, ThrottleStats] = {}
    for each in (each for page in lists for each in page.throttles):
        known = found.setdefault(each.key, each)
        if known is not each:
            known.in_use += each.in_use
            known.waiting += each.waiting
            rates = [rate for rate in (known.rate_in_force, each.rate_in_force) if rate is not None]
            known.rate_in_force = min(rates, default=None)
            known.tokens = min((tokens for tokens in (known.tokens, each.tokens) if tokens is not None), default=None)
    end = min((page.next for page in lists if page.next), default="")
    names = sorted(key for key in found if not end or key <= end)
    shown = names[:LIST_THROTTLES_MAX]
    holders = sorted((each for page in lists for each in page.holders), key=lambda each: each.since_ms)
    waiters = sorted((each for page in lists for each in page.waiters), key=lambda each: -each.pending)
    return ThrottleList(
        [found[key] for key in shown],
        shown[-1] if len(shown) < len(names) else end,
        holders[:THROTTLE_USERS_SHOWN],
        waiters[:THROTTLE_USERS_SHOWN],
    )
