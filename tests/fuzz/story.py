"""A run of the fuzzer: what happened step by step, so that a failure can be played again, and made shorter.

A story begins with ordinary life (queues, messages, consumers), then everything may come: well-meant commands, extreme ones, bytes
that are no commands, time, restarts. After every few steps the invariants are checked and an honest client must be served; at the
end the shards are recovered from what they committed, which must hold too.
"""

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from fila_admission.requests import OF_WORKERS
from fila_proto_zmq.codec import decode_command, encode_command
from fila_proto_zmq.commands import BY_OPCODE, Command, CreateQueue, Enqueue, QueueOptions, Receive, Reserve, Subscribe
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.frames import pack_header, unpack_header
from tests.fuzz.broker import FuzzedBroker
from tests.fuzz.values import Values

BY_CLIENTS = sorted(opcode for opcode in BY_OPCODE if opcode < OF_WORKERS)
BY_BROKERS = sorted(opcode for opcode in BY_OPCODE if opcode >= OF_WORKERS)
OFTEN = [
    command.opcode for command in (Enqueue, Receive, Subscribe, Reserve) for _ in range(3)
] + [40, 40, 40, 41]  # fmt: skip
"""Chosen as often as all commands together: without messages in flight most others are refused at once."""
CLIENTS = (b"alice", b"bob", b"\0\0\0\0\7", b"\0reserved\0x", b"\xff\xfe")
STEPS = 60
CHECK_EVERY = 12
OPENING: tuple[tuple[str, int | None], ...] = (("q", 2), ("r", None), ("ns/s", 1))


@dataclass(frozen=True)
class Frame:
    """A client's frame."""

    client: bytes
    header: bytes
    key: bytes
    body: bytes

    def play(self, broker: FuzzedBroker) -> None:
        broker.from_client(self.client, self.header, self.key, self.body)
        broker.run()

    def __str__(self) -> str:
        try:
            said = str(decode_command(unpack_header(self.header), self.body))
        except FilaError:
            said = f"header {self.header!r}, body {self.body!r}"
        return f"{self.client!r} to {self.key!r}: {said}"


@dataclass(frozen=True)
class Together:
    """Frames that arrive in one turn."""

    frames: tuple[Frame, ...]

    def play(self, broker: FuzzedBroker) -> None:
        for frame in self.frames:
            broker.from_client(frame.client, frame.header, frame.key, frame.body)
        broker.run()

    def __str__(self) -> str:
        return "in one turn: " + "; ".join(map(str, self.frames))


@dataclass(frozen=True)
class Time:
    """Time that passes."""

    milliseconds: int

    def play(self, broker: FuzzedBroker) -> None:
        broker.pass_time(self.milliseconds)

    def __str__(self) -> str:
        return f"{self.milliseconds} ms pass"


@dataclass(frozen=True)
class Restart:
    """All shards are recovered from their stores."""

    def play(self, broker: FuzzedBroker) -> None:
        broker.restart()
        broker.check()

    def __str__(self) -> str:
        return "restart"


Step = Frame | Together | Time | Restart


class StoryError(AssertionError):
    """What went wrong, and the shortest story found that brings it about."""


def invent(random: Random, broker: FuzzedBroker, steps: int) -> Iterator[Step]:
    """Steps that fit to what has happened so far: to be played before the next one is asked for."""
    values = Values(random, broker.known)
    for queue, attempts in OPENING:
        options = QueueOptions(
            max_attempts=attempts, visibility_timeout_ms=500, max_in_flight_per_key=random.choice((None, 1, 2))
        )
        yield _frame(random, CLIENTS[0], CreateQueue(options), queue)
    for _ in range(steps):
        luck = random.random()
        if luck < 0.12:
            yield Time(random.choice((1, 100, 600, 2100, 5100, 11_000, 61_000, 600_000)))
        elif luck < 0.14:
            yield Restart()
        elif luck < 0.17:
            yield _nonsense(random, values)
        elif luck < 0.3:
            yield Together(tuple(_well_formed(random, values) for _ in range(random.randint(2, 4))))
        else:
            yield _well_formed(random, values)


def _well_formed(random: Random, values: Values) -> Frame:
    values.wild = random.choice((0.0, 0.0, 0.1, 0.4))
    command = values.any_command(OFTEN if random.random() < 0.5 else BY_CLIENTS)
    return _frame(random, random.choice(CLIENTS), command, values.queue())


def _frame(random: Random, client: bytes, command: Command, queue: str) -> Frame:
    header, _, body = encode_command(command, random.choice((0, 1, 2, random.getrandbits(64))))
    return Frame(client, header, queue.encode(), body)


def _nonsense(random: Random, values: Values) -> Frame:
    """A frame with something wrong in it: header, opcode, version, or a byte of its body."""
    header = bytearray(pack_header(random.randrange(256), random.getrandbits(64), random.choice((0, 0, 1, 2, 3, 255))))
    if random.random() < 0.3:
        header[random.randrange(len(header))] = random.randrange(256)
    header = header[: random.choice((18, 18, 18, 0, 5, 17))]
    body = bytearray(
        random.choice((b"", b"\x90", b"\xdd\xff\xff\xff\xff", b"\x91" * 2000, values.envelope(), b"\x93\xc0\xc0\xc0"))
    )
    if body and random.random() < 0.5:
        body[random.randrange(len(body))] = random.randrange(256)
    return Frame(random.choice(CLIENTS), bytes(header), random.choice((b"q", b"", b"\xff\xfe", b"x" * 5000)), bytes(body))


# --- playing ----------------------------------------------------------------------------------------------------------


def play(steps: Iterator[Step] | Sequence[Step], broker: FuzzedBroker, played: list[Step] | None = None) -> None:
    """Play a story to its end; what goes wrong is raised."""
    for number, step in enumerate(steps):
        if played is not None:
            played.append(step)
        step.play(broker)
        if number % CHECK_EVERY == 0:
            broker.check()
            broker.serve_an_honest_client()
    broker.check()
    broker.serve_an_honest_client()
    Restart().play(broker)
    broker.serve_an_honest_client()


def fuzz(random: Random, steps: int = STEPS) -> None:
    """Invent and play one story; :class:`StoryError` tells the shortest one that goes wrong in the same way."""
    broker = FuzzedBroker()
    played: list[Step] = []
    try:
        play(invent(random, broker, steps), broker, played)
    except Exception as error:
        shortest = shrink(played, symptom(error))
        story = "\n".join(f"  {number:3} {str(step)[:400]}" for number, step in enumerate(shortest))
        raise StoryError(f"{symptom(error)}\n{story}\n{traceback.format_exc()}") from None


def symptom(error: BaseException) -> str:
    """What makes two failures the same: the error's type and where it came from."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {last.name} ({last.filename.rsplit('/', 1)[-1]})"


def shrink(steps: list[Step], wanted: str) -> list[Step]:
    """Leave out what is not needed (ddmin: Zeller and Hildebrandt 2002)."""
    apart = [part for step in steps for part in (step.frames if isinstance(step, Together) else (step,))]
    steps = apart if _fails(apart, wanted) else steps
    size = max(1, len(steps) // 2)
    while size:
        start = 0
        while start < len(steps):
            fewer = steps[:start] + steps[start + size :]
            if _fails(fewer, wanted):
                steps = fewer
            else:
                start += size
        size //= 2
    return steps


def _fails(steps: list[Step], wanted: str) -> bool:
    try:
        play(steps, FuzzedBroker())
    except Exception as error:
        return symptom(error) == wanted
    return False
