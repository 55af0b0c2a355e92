"""Peers that keep to no protocol, and peers that ask and never read. Nothing that they do may hurt others."""

from random import Random
from typing import TYPE_CHECKING, Any

from fila_proto_zmq.codec import decode_body, encode_command
from fila_proto_zmq.commands import (
    Browse,
    DeleteQueue,
    DeleteSchedule,
    EndReservation,
    Extend,
    Goodbye,
    Heartbeat,
    Hello,
    ListQueues,
    Pause,
    PurgeQueue,
    Receive,
    Settle,
    Subscribe,
    Unsubscribe,
    Welcome,
)  # fmt: skip
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.frames import REPLY, VERSION, pack_header
from fila_proto_zmq.ids import TAG_BYTES
from fila_proto_zmq.names import partition_name
from tests.simulation.actors.clients import RawPeer
from tests.simulation.world.key_file import ADMIN

if TYPE_CHECKING:
    from tests.simulation.run import Run

INDEXES = (0, 1, -1, -3, 7, 2**31, -(2**63), 2**63 - 1)
WRONG = "fila_wrong"
PAUSE_US = 150_000
"""Between two frames of a peer."""
ACTS = frozenset(command.opcode for command in (DeleteQueue, DeleteSchedule, Pause, PurgeQueue))
"""Commands that need no arguments, and do what the history must know."""
NOTHING = b"\xc1"
"""A body of no command."""


def hostile(run: "Run", random: Random) -> None:
    """Someone sends what no client would, under names that are not its own."""
    peer = _peer(run, random.choice([b"", b"\0reserved\0x", b"\0\0\0\0\1", _known_client(run, random), random.randbytes(9)]))
    if random.random() < 0.7:
        _greet(run, peer)
    for number in range(random.choice([1, 4, 12])):
        run.world.after((number + 1) * PAUSE_US, _say_something, run, peer, random)


def unread(run: "Run", random: Random) -> None:
    """Someone asks for much, and reads nothing of it."""
    peer = _peer(run, b"")
    _greet(run, peer)
    run.world.after(PAUSE_US, _ask_for_much, run, peer, random)


def _peer(run: "Run", identity: bytes) -> RawPeer:
    peer = RawPeer(run.world, run.network, f"peer-{len(run.peers)}", identity, run.cluster.fronts[0])
    run.peers.append(peer)
    return peer


def _greet(run: "Run", peer: RawPeer) -> None:
    if run.guarded:
        peer.api_key = Random(f"{run.options.seed} {peer.name}").choice(["", WRONG, ADMIN])
    peer.say(encode_command(Hello([VERSION], "0", b"", api_key=peer.api_key), 1))


def guesser(run: "Run", random: Random) -> None:
    """Someone tries wrong keys, one after the other, and asks all the same."""
    peer = _peer(run, b"")
    for number in range(random.choice([1, 3, 12])):
        run.world.after(number * random.choice([10_000, 300_000]), _guess, run, peer, random)


def _guess(run: "Run", peer: RawPeer, random: Random) -> None:
    if not peer.socket.closed:
        peer.say(encode_command(Hello([VERSION], "0", b"", api_key=random.choice(["", WRONG])), 1))
        peer.say(encode_command(random.choice([ListQueues(), Browse(5)]), 2, random.choice(sorted(run.history.queues))))


def _tag(peer: RawPeer) -> int:
    """The tag of the session that it was given; 0 if it has none."""
    for parts in peer.heard:
        try:
            session = decode_body(Welcome, parts[-1]).session
        except FilaError:
            continue
        return int.from_bytes(session[:TAG_BYTES], "big")
    return 0


def _known_client(run: "Run", random: Random) -> bytes:
    return random.choice(run.clients).process.identity or b"nobody"


def _say_something(run: "Run", peer: RawPeer, random: Random) -> None:
    if peer.socket.closed:
        return
    kind = random.random()
    if kind < 0.25:
        parts = [random.randbytes(random.choice([0, 1, 18, 40])) for _ in range(random.randint(1, 5))]
    elif kind < 0.4:
        opcode = random.randrange(80)
        header = pack_header(opcode, random.getrandbits(30), random.choice([0, REPLY, 3, 255]), _tag(peer))
        queue = _queue(run, random).encode()
        body = random.choice([b"\x90", NOTHING, b"\x93\x01\x02\x03", b"\xdd\xff\xff\xff\xff", b""])
        parts = [header, queue, NOTHING if opcode in ACTS else body]
    else:
        tag = random.choice([_tag(peer), _tag(peer), random.getrandbits(32)])
        parts = encode_command(_command(run, random), random.getrandbits(30), _queue(run, random), tag)
    peer.say(parts)


def _queue(run: "Run", random: Random) -> str:
    names = sorted(run.history.queues)
    spread = [partition_name(name, 1) for name in names if run.history.spread_of(name)[0] > 1]
    return random.choice([*names, "no such queue", "", *spread])


def _command(run: "Run", random: Random) -> Any:
    lease, indexes = _somebodys_lease(run, random), random.sample(INDEXES, random.randint(0, 3))
    return random.choice([
        Settle(random.choice([0, 1, 2, 3, 4, 5, 99, -1]), [(lease, indexes)]), Settle(1, [(lease, []), (lease, indexes)]),
        Extend([(lease, indexes)], random.choice([-1, 1, 10**15])), Goodbye(), Goodbye([(lease, indexes)]), Heartbeat(),
        Subscribe(random.choice([-1, 2**63]), 0, [lease]), Subscribe(1, -5), Unsubscribe(7, [lease]), Receive(-1, 0), Receive(10**9, -1),
        EndReservation("nobody's", random.choice([0, 99])), Browse(-1), Browse(5, state="?"), Hello([], "", b"x" * 32),
    ])  # fmt: skip


def _somebodys_lease(run: "Run", random: Random) -> int:
    grants = run.history.grants
    lease = grants[-random.randint(1, min(9, len(grants)))].lease if grants else 1
    return random.choice([lease, lease, lease + 1, lease ^ (1 << 40), 2**62, 0])


def _ask_for_much(run: "Run", peer: RawPeer, random: Random) -> None:
    peer.socket.stalled = True
    tag = _tag(peer)
    for number in range(random.choice([10, 40, 120])):
        command = random.choice([Browse(100), Browse(100), ListQueues()])
        queue = "" if isinstance(command, ListQueues) else random.choice(sorted(run.history.queues))
        peer.say(encode_command(command, number + 2, queue, tag))


def leave(peers: list[RawPeer]) -> None:
    """All of them go."""
    for peer in peers:
        peer.socket.close()
