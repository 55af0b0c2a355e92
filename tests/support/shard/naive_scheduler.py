"""What a queue should deliver, and to whom, in the simplest code there is: lists, sorted and searched from the start.

One queue, no lanes, no heaps, no cursors, no disk. It follows the contract, and where that leaves freedom what the docstrings of
the core say: a key that has something to deliver after it had nothing is served next, before those that had a backlog, but no turn
yet, when it came; one that waited for a settlement, a pause or
a park goes on with its next turn of the round; demands take turns, each for its share of what is pending.

It does not limit new keys, and counts the rounds of debts turn by turn.
"""

from dataclasses import dataclass, field

MILLI = 1000
GRID_MS = 1000
"""Messages past their time are looked for at the full second."""

Lane = tuple[str, tuple[str, ...]]
"""A fairness key and a set of throttle keys."""


@dataclass(eq=False)
class Message:
    id: str
    number: int
    lane: Lane
    priority: int
    cost_milli: int
    expires_ms: int | None = None
    due_ms: int = 0
    state: str = "new"
    """``pending``, ``delayed``, ``leased`` or ``gone``."""
    held: bool = False
    """Leased, or delayed after a delivery: its key counts it as in flight."""
    attempts: int = 0
    first: bool = False
    """Delivered before, in a strictly ordered queue: it goes before all that were not."""

    @property
    def place(self) -> tuple[int, int]:
        return (FIRST if self.first else self.priority), self.number

    def too_old(self, now_ms: int) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now_ms


@dataclass(eq=False)
class Key:
    name: str
    weight: int = 1
    blocked_head: tuple[int, int] | None = None
    """The place of the message that all behind it wait for, in a strictly ordered queue."""
    credit: int = 0
    last_turn: int = -1
    joined_turn: int = 0
    due: int = 0
    """The round from which on it owes nothing."""
    before: int | None = None
    """Its credit before the turn in progress, if nothing was delivered in that."""


FIRST = -(2**32)
"""Before every priority."""


@dataclass(eq=False)
class Demand:
    client: bytes
    credit: int
    receive: bool = False


@dataclass
class NaiveScheduler:
    cap: int | None = None
    max_attempts: int | None = None
    paused: bool = False
    paused_keys: set[str] = field(default_factory=set)
    messages: list[Message] = field(default_factory=list)
    keys: dict[str, Key] = field(default_factory=dict)
    lanes: list[Lane] = field(default_factory=list)
    """In the order in which they were first used."""
    blocked: list[Lane] = field(default_factory=list)
    """Lanes that were found parked, the first one first."""
    parks: dict[str, int] = field(default_factory=dict)
    demands: list[Demand] = field(default_factory=list)
    returning: list[Message] = field(default_factory=list)
    """Messages of a lease that is being ended, which are in no line yet."""
    fresh: list[Key] = field(default_factory=list)
    again: list[Key] = field(default_factory=list)
    busy: list[Key] = field(default_factory=list)
    owing: list[Key] = field(default_factory=list)
    current: Key | None = None
    turns: int = 0
    old_turn: int = 0
    rounds: int = 0
    began: int = 0

    # --- what is there ------------------------------------------------------------------------------------------------

    def key(self, name: str) -> Key:
        return self.keys.setdefault(name, Key(name))

    def of(self, key: Key, *states: str) -> list[Message]:
        """A key's messages in line order."""
        return sorted((m for m in self.messages if m.lane[0] == key.name and m.state in states), key=lambda m: m.place)

    def ready(self, key: Key) -> list[Message]:
        return [m for m in self.of(key, "pending") if m.lane not in self.blocked]

    def deliverable(self, key: Key) -> bool:
        if key.name in self.paused_keys or key.blocked_head or not self.ready(key):
            return False
        return self.cap is None or sum(m.held for m in self.messages if m.lane[0] == key.name) < self.cap

    def ring(self) -> list[Key]:
        current = [self.current] if self.current and self.current not in self.busy else []
        return [*current, *self.fresh, *self.again, *self.busy, *self.owing]

    def backlogged(self, key: Key) -> bool:
        """The messages of a lease that ends are pending together, and come in line one after the other."""
        return len(self.of(key, "pending")) + sum(m.lane[0] == key.name for m in self.returning) > key.weight

    # --- keys come and go ---------------------------------------------------------------------------------------------

    def arrive(self, message: Message) -> None:
        """A message is pending now."""
        message.state = "pending"
        key = self.key(message.lane[0])
        if key.blocked_head and message.lane not in self.blocked and message.place < key.blocked_head:
            key.blocked_head = None
        if key not in self.ring() and self.deliverable(key):
            self.join(key)

    def release(self, message: Message) -> None:
        """A message is not in flight any more."""
        message.held = False
        if self.cap is not None:
            self.refresh_eligibility(self.key(message.lane[0]))

    def join(self, key: Key) -> None:
        if self.owes(key):
            return
        key.joined_turn = self.turns
        came_again = key.last_turn >= self.old_turn
        others = self.busy or (self.fresh and self.backlogged(self.fresh[0]))
        (self.again if came_again and others else self.fresh).append(key)

    def owes(self, key: Key) -> bool:
        if key.due <= self.rounds or not self.ring():
            key.due = key.credit = 0
        elif key.due > self.rounds + 1:
            self.owing.append(key)
            return True
        return False

    def refresh_eligibility(self, key: Key) -> None:
        """Something else changed that decides whether a key may deliver."""
        if not self.deliverable(key):
            self.leave(key)
        elif key not in self.ring():
            if self.turns - key.last_turn >= len(self.ring()):
                self.join(key)
            elif not self.owes(key):
                self.busy.append(key)

    def leave(self, key: Key) -> None:
        if key not in self.ring():
            return
        owing = key in self.owing
        for line in (self.fresh, self.again, self.busy, self.owing):
            if key in line:
                line.remove(key)
        if self.current is key:
            self.current = None
            if key.before is None:
                key.last_turn = self.turns
            else:
                key.credit = key.before
        if key.credit >= 0:
            key.credit = 0
        elif not owing:
            self.owe(key)

    def take_out(self, message: Message, state: str = "gone") -> None:
        """A pending message leaves the line."""
        message.state = state
        key = self.key(message.lane[0])
        lane_is_empty = all(m.lane != message.lane for m in self.of(key, "pending"))
        if not lane_is_empty or message.lane in self.blocked:
            key.blocked_head = None
        if lane_is_empty and message.lane in self.blocked:
            self.blocked.remove(message.lane)
        self.refresh_eligibility(key)

    # --- turns --------------------------------------------------------------------------------------------------------

    def owe(self, key: Key) -> None:
        key.due = self.rounds + 1
        while key.credit <= -key.weight * MILLI:
            key.credit += key.weight * MILLI
            key.due += 1

    def admit(self) -> bool:
        """Let one key that has paid be next of the busy ones."""
        paid = sorted((key for key in self.owing if key.due <= self.rounds), key=lambda key: key.due)
        for key in paid[:1]:
            self.owing.remove(key)
            self.busy.insert(0, key)
        return bool(paid)

    def begin_turn(self) -> Key | None:
        while self.ring():
            key = self.next_key()
            self.turns += 1
            key.before = key.credit
            key.credit += key.weight * MILLI
            if key.credit > 0:
                self.current = key
                return key
            self.end_turn(key)
        return None

    def next_key(self) -> Key:
        if self.fresh and not self.busy:
            self.rounds += 1
            self.began = self.turns + 1
            self.admit()
            if not self.busy and not self.backlogged(self.fresh[0]):
                self.refresh()
        if self.fresh:
            overtaken = self.fresh[-1].joined_turn > self.fresh[0].joined_turn and self.backlogged(self.fresh[0])
            return self.fresh.pop(-1 if overtaken else 0)
        self.admit()
        if not self.busy and self.again:
            self.refresh()
            return self.next_key()
        if not self.busy or self.busy[0].last_turn >= self.began:
            self.rounds += 1
            self.began = self.turns + 1
            while not self.admit() and not self.busy:
                self.rounds += 1
        key = self.busy.pop(0)
        self.busy.append(key)
        self.old_turn = self.turns + 1
        self.refresh()
        return key

    def refresh(self) -> None:
        for key in self.again:
            key.joined_turn = self.turns
        self.fresh += self.again
        self.again = []

    def end_turn(self, key: Key) -> None:
        self.current = None
        key.last_turn = self.turns
        if key not in self.busy:
            self.old_turn = self.turns
            self.refresh()
            self.busy.append(key)
        if key.credit <= -key.weight * MILLI:
            self.busy.remove(key)
            self.owe(key)
            self.owing.append(key)

    def pick(self, count: int, now_ms: int) -> list[Message]:
        """The next messages, at most ``count``."""
        picked: list[Message] = []
        while len(picked) < count:
            key = self.current or self.begin_turn()
            if key is None:
                break
            while len(picked) < count and key.credit > 0 and self.deliverable(key):
                message = self.ready(key)[0]
                waiting = [m.place for m in self.of(key, "pending") if m.lane in self.blocked]
                if self.cap == 1 and waiting and min(waiting) < message.place:
                    key.blocked_head = min(waiting)
                elif message.too_old(now_ms):
                    message.state = "gone"
                elif any(self.parks.get(each, 0) > now_ms for each in message.lane[1]):
                    self.blocked.append(message.lane)
                else:
                    message.state, message.held, key.before = "leased", True, None
                    key.credit -= message.cost_milli
                    picked.append(message)
            if not self.deliverable(key):
                self.leave(key)
            elif key.credit <= 0:
                self.end_turn(key)
        return picked

    def deliver(self, now_ms: int) -> list[tuple[bytes, list[Message]]]:
        """Serve the demands; returns who gets what."""
        parcels: list[tuple[bytes, list[Message]]] = []
        left = share = 0
        while self.demands and self.ring() and not self.paused:
            if left == 0:
                left = len(self.demands)
                share = max(1, sum(m.state == "pending" for m in self.messages) // left)
            left -= 1
            demand = self.demands.pop(0)
            picked = self.pick(min(demand.credit, share), now_ms)
            if picked:
                parcels.append((demand.client, picked))
                demand.credit -= demand.credit if demand.receive else len(picked)
            if demand.credit > 0:
                self.demands.append(demand)
        self.demands = [demand for demand in self.demands if not demand.receive]  # they do not wait
        return parcels

    # --- what else happens --------------------------------------------------------------------------------------------

    def enqueue(self, message: Message, weight: int, now_ms: int) -> None:
        self.messages.append(message)
        if message.lane not in self.lanes:
            self.lanes.append(message.lane)
        key = self.key(message.lane[0])
        key.weight = weight or key.weight
        if message.due_ms > now_ms:
            message.state = "delayed"
        else:
            self.arrive(message)

    def fail(self, message: Message, due_ms: int, now_ms: int) -> None:
        """A leased message comes back after a failed attempt, at once or (``due_ms`` not 0) later."""
        message.attempts += 1
        if self.max_attempts and message.attempts >= self.max_attempts:
            self.ack(message)
        else:
            self.give_back(message, due_ms, now_ms)

    def give_back(self, message: Message, due_ms: int, now_ms: int) -> None:
        """A leased message comes back unharmed."""
        if message.too_old(now_ms):
            self.ack(message)
            return
        message.first |= self.cap == 1
        if due_ms:
            message.state, message.due_ms = "delayed", due_ms
        else:
            self.arrive(message)
            self.release(message)

    def ack(self, message: Message) -> None:
        """A message is gone."""
        message.state = "gone"
        self.release(message)

    def advance(self, now_ms: int) -> None:
        """What the clock does, but for leases. Called at each time at which something is due."""
        order = {lane: index for index, lane in enumerate(self.lanes)}
        for message in sorted(self.messages, key=lambda m: (order[m.lane], m.place)):
            if message.expires_ms and -(-message.expires_ms // GRID_MS) * GRID_MS <= now_ms:
                if message.state == "pending":
                    self.take_out(message)
                elif message.state == "delayed":
                    self.ack(message)
        for message in sorted(self.messages, key=lambda m: (m.due_ms, order[m.lane], m.place)):
            if message.state == "delayed" and message.due_ms <= now_ms:
                if message.too_old(now_ms):
                    message.state = "gone"
                else:
                    self.arrive(message)
                if message.held:
                    self.release(message)
        for lane in sorted(self.blocked, key=lambda lane: lane[1]):
            if all(self.parks.get(each, 0) <= now_ms for each in lane[1]):
                self.blocked.remove(lane)
                self.key(lane[0]).blocked_head = None
                self.refresh_eligibility(self.key(lane[0]))

    def restart(self) -> None:
        """Turns, credits and demands are forgotten, and weights of keys without messages."""
        self.messages = [m for m in self.messages if m.state != "gone"]
        self.lanes = [lane for lane in self.lanes if any(m.lane == lane for m in self.messages)]
        old, self.keys = self.keys, {}
        for name, _ in self.lanes:
            self.keys.setdefault(name, Key(name, old[name].weight))
        self.blocked, self.demands, self.fresh, self.again, self.busy, self.owing = [], [], [], [], [], []
        self.current, self.turns, self.old_turn, self.rounds, self.began = None, 0, 0, 0, 0
        for name, throttles in self.lanes:
            key = self.keys[name]
            pending = any(m.lane == (name, throttles) and m.state == "pending" for m in self.messages)
            if pending and key not in self.ring() and self.deliverable(key):
                self.join(key)
