"""A session with a router and some workers' doors, all scripted: which way does each frame take, and in which order?"""

from fila_cluster.client.requests.call import PendingCall
from fila_cluster.client.requests.routes import DirectWay, Way, WayState
from fila_proto_zmq import codec
from fila_proto_zmq.commands import (
    PLACEMENT,
    WORKER_BANNER,
    Command,
    Done,
    DoorView,
    GetPlacement,
    Heartbeat,
    Hello,
    Placement,
    Reply,
    Welcome,
    WorkerBanner,
)
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.frames import pack_header
from fila_proto_zmq.names import shard_of
from tests.unit.client.peer import Peer, Sent, read

SECRET = bytes(range(32))
SHARDS = 4
Q = {shard: next(name for name in map("q{}".format, range(99)) if shard_of(name, SHARDS) == shard) for shard in range(SHARDS)}
"""A queue of each shard."""
WORKERS = {"one": (0, 1), "two": (2, 3)}


def view(worker: str, *, epoch: int = 7, door: bytes | None = None) -> DoorView:
    """The door of a worker."""
    shards = [(shard, (1 << 40) + epoch) for shard in WORKERS[worker]]
    return DoorView(worker, door or worker.encode() * 4, [f"ipc:///{worker}"], shards)


class PeerCluster(Peer):
    """Answers as the router and as workers. ``doors``: those that the router names."""

    def __init__(self, *doors: DoorView, greeted: bool = True, **limits: int) -> None:
        self.doors = list(doors)
        super().__init__(connected=False, direct=True, **limits)
        if greeted:
            self.greet()

    def greet(self) -> None:
        """Answer the greeting of the router."""
        *_, hello = self.sent(Hello)
        assert hello.command.direct is True
        self.reply(hello, Welcome(1, "0.0", SHARDS, 15_000, 1 << 20, SECRET, self.doors))

    def place(self, *doors: DoorView) -> None:
        """Have the router push a placement."""
        self.doors = list(doors)
        body = codec.encode_body(Placement(self.doors))
        self.session.arrived([pack_header(PLACEMENT), b"", body], self.now)
        self.check()

    def check(self) -> None:
        self.session._calls.check()

    # --- what the shell does --------------------------------------------------------------------------------------------

    def wanted(self) -> list[DirectWay]:
        """The ways to connect, once."""
        self.session.flush(self.now)
        self.check()
        wanted = list(self.session.routes.wanted)
        self.session.routes.wanted.clear()
        return wanted

    def unwanted(self) -> list[DirectWay]:
        """The ways to close, once."""
        unwanted = list(self.session.routes.unwanted)
        self.session.routes.unwanted.clear()
        return unwanted

    def banner(self, way: DirectWay, door: bytes | None = None) -> None:
        """Have a worker say which door it is; by default the right one."""
        banner = WorkerBanner(way.door if door is None else door)
        self.session.arrived([pack_header(WORKER_BANNER), b"", codec.encode_body(banner)], self.now, way)
        self.check()

    def lose(self, way: DirectWay) -> None:
        """Lose a direct connection."""
        self.session.lost(way, self.now)
        self.check()

    def lose_router(self) -> None:
        """Lose the link to the router."""
        self.session.disconnected(self.now)
        self.check()

    def by_router(self, *kinds: type[Command]) -> list[Sent]:
        """What goes through the router now, without the questions that a client asks for itself."""
        frames = self.sent(*kinds)
        self.check()
        return [frame for frame in frames if kinds or not isinstance(frame.command, GetPlacement)]

    def by(self, way: Way, *kinds: type[Command]) -> list[Sent]:
        """What goes on a direct way now."""
        self.session.flush(self.now)
        frames = [read(parts) for parts in way.outgoing]
        way.outgoing.clear()
        self.check()
        return [frame for frame in frames if not kinds or isinstance(frame.command, kinds)]

    def answer(self, way: Way, sent: Sent, answer: Reply | FilaError) -> None:
        """Answer a frame on its way, or on another one."""
        header = sent.header
        if isinstance(answer, FilaError):
            frame = codec.encode_error(header.opcode, header.request, answer, sent.key)
        else:
            frame = codec.encode_reply(header.opcode, header.request, answer, sent.key)
        self.session.arrived(frame, self.now, way if isinstance(way, DirectWay) else None)
        self.check()

    def open(self, queue: str) -> DirectWay:
        """Open the way to a queue's shard, with a call that is answered."""
        call = self.ask(queue)
        (way,) = self.wanted()
        self.let_in(way)
        (sent,) = self.by(way)
        self.answer(way, sent, Done())
        assert call.done
        assert call.error is None
        return way

    def let_in(self, way: DirectWay) -> None:
        """Do what a worker does with a new connection."""
        self.banner(way)
        (hello,) = self.by(way)
        assert isinstance(hello.command, Hello)
        assert hello.command.session == SECRET
        self.answer(way, hello, Welcome(1, "0.0", SHARDS, 15_000, 1 << 20))
        assert way.state == WayState.OPEN

    def ask(self, queue: str, command: Command | None = None) -> PendingCall:
        """Ask something of a queue's shard; by default what may be repeated."""
        call = self.session.call(queue, command or Heartbeat(), self.now)
        self.check()
        return call
