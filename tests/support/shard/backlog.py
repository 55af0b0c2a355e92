"""A queue's backlog as a reader would keep it by hand: a dict of messages, and rules for where each of them is.

Times are whole seconds, so that nobody has to know on which grid the broker sweeps.
"""

from dataclasses import dataclass, field

from fila_proto_zmq.commands import QueueOptions

DISCARD, OWN = "discard", "q.dlq"
NO_LIMIT = 10**9


@dataclass
class Known:
    """One message of ``q``: where it is, and when it may be somewhere else. ``number`` counts the messages that came in."""

    priority: int
    number: int
    key: str
    throttled: bool
    queue: str = "q"
    state: str = "pending"
    attempts: int = 0
    due_ms: int = 0
    expires_ms: int | None = None
    retrying: bool = False
    lease_ends_ms: int = 0
    in_front: bool = False
    """It came back while its key was strictly ordered: it goes before all that were not delivered yet."""

    @property
    def place(self) -> tuple[bool, int, int]:
        """Its order within a key."""
        return not self.in_front, 0 if self.in_front else self.priority, self.number


@dataclass
class Backlog:
    """What is known of ``q`` and of the queues that take its dead letters, at ``now_ms``."""

    named: str
    queue_max: int | None
    key_max: int | None
    now_ms: int
    options: QueueOptions = field(default_factory=QueueOptions)
    known: dict[str, Known] = field(default_factory=dict)

    # --- looking ------------------------------------------------------------------------------------------------------

    def here(self, queue: str, key: str | None = None) -> list[Known]:
        """What is in a queue, or in one of its keys."""
        there = (known for known in self.known.values() if known.queue == queue and known.state != "gone")
        return [known for known in there if key in {None, known.key}]

    def first_in_line(self, key: str) -> tuple[bool, int, int]:
        return min(known.place for known in self.here("q", key) if known.state == "pending")

    def has_room(self, key: str) -> bool:
        in_queue, of_key = len(self.here("q")), len(self.here("q", key))
        return in_queue < (self.queue_max or NO_LIMIT) and of_key < (self.key_max or NO_LIMIT)

    def deliverable(self) -> int:
        """How many messages may be delivered now."""
        total = 0
        for key in {known.key for known in self.known.values()}:
            of_key = self.here("q", key)
            pending = sum(known.state == "pending" for known in of_key)
            in_flight = sum(known.state == "leased" or (known.state == "delayed" and known.retrying) for known in of_key)
            total += min(pending, max(0, (self.options.max_in_flight_per_key or NO_LIMIT) - in_flight))
        return total

    def too_old(self, known: Known) -> bool:
        return known.expires_ms is not None and known.expires_ms <= self.now_ms

    # --- moving -------------------------------------------------------------------------------------------------------

    def add(self, identity: str, known: Known, delay_ms: int, ttl_ms: int) -> None:
        self.known[identity] = known
        self.begin(known, ttl_ms)
        if delay_ms:
            known.state, known.due_ms = "delayed", self.now_ms + delay_ms

    def begin(self, known: Known, ttl_ms: int = 0) -> None:
        """It comes into ``q``, for the first time or again."""
        known.queue, known.attempts = "q", 0
        ttl_ms = ttl_ms or self.options.default_ttl_ms or 0
        known.expires_ms = self.now_ms + ttl_ms if ttl_ms else None

    def fail_attempt(self, known: Known, after_ms: int = 0) -> None:
        known.attempts += 1
        if self.options.max_attempts is not None and known.attempts >= self.options.max_attempts:
            self.bury(known)
        else:
            self.put_back(known, after_ms)

    def put_back(self, known: Known, after_ms: int = 0) -> None:
        if self.too_old(known):
            self.bury(known)
            return
        known.in_front |= self.options.max_in_flight_per_key == 1
        if after_ms:
            known.state, known.due_ms, known.retrying = "delayed", self.now_ms + after_ms, True
        else:
            known.state = "pending"

    def bury(self, known: Known) -> None:
        policy = self.options.dead_letter
        known.expires_ms, known.retrying, known.in_front = None, False, False
        known.state = "gone" if policy == DISCARD else "pending"
        known.queue = self.named if policy == self.named else OWN

    def pass_time(self, now_ms: int) -> set[str]:
        """Let time pass; returns the messages whose leases ended."""
        self.now_ms = now_ms
        ended = set()
        for identity, known in self.known.items():
            if known.state == "leased" and known.lease_ends_ms <= now_ms:
                ended.add(identity)
                self.fail_attempt(known)
            if known.state in {"pending", "delayed"} and self.too_old(known):
                self.bury(known)
            if known.state == "delayed" and known.due_ms <= now_ms:
                known.state, known.retrying = "pending", False
        return ended
