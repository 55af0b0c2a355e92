"""Which bindings of an exchange a message takes: AMQP's direct, topic and fanout exchanges, without I/O."""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

KINDS = frozenset({"direct", "topic", "fanout"})


class Binding(NamedTuple):
    """A queue that gets the messages of an exchange. ``kind``: the exchange's; ``key``: the routing key, a pattern for a topic."""

    kind: str
    queue: str
    key: str

    def takes(self, routing_key: str) -> bool:
        """Return whether a message with this routing key goes to the queue."""
        if self.kind == "fanout":
            return True
        if self.kind == "topic":
            return _matches(self.key, routing_key)
        return self.key == routing_key

    def packed(self) -> bytes:
        """Return it as the payload of a message."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()


def unpacked(payload: bytes) -> Binding | None:
    """Return the binding in a message; None if it is none."""
    try:
        found: Any = json.loads(payload)
        binding = Binding(found["kind"], found["queue"], found["key"])
    except (ValueError, TypeError, KeyError):
        return None
    return binding if binding.kind in KINDS and all(isinstance(each, str) for each in binding) else None


def destinations(bindings: Iterable[Binding]) -> list[str]:
    """Return the queues that a message goes to which these bindings take: each once, in the order of the bindings."""
    return list(dict.fromkeys(each.queue for each in bindings))


def _matches(pattern: str, routing_key: str) -> bool:
    """Return whether a topic's pattern takes a routing key.

    Words are separated by dots; ``*`` stands for one word, ``#`` for any number of them. Costs the product of both lengths at most, whatever the
    pattern is.
    """
    words = routing_key.split(".")
    matched = {0}
    """How many words the pattern may have used so far."""
    for part in pattern.split("."):
        if part == "#":
            matched = set(range(min(matched), len(words) + 1))
        else:
            matched = {used + 1 for used in matched if used < len(words) and part in ("*", words[used])}
        if not matched:
            return False
    return len(words) in matched
