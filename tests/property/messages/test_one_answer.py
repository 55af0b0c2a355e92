"""The promise of the router: every request gets exactly one answer, whatever becomes of the workers."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fila_proto_zmq.commands import Enqueue
from fila_proto_zmq.frames import REPLY, pack_header
from tests.unit.router.desk import CLIENT, Desk

WORKERS = ("worker-0", "worker-1")
KEYS = (b"orders", b"a", b"b", b"c")

workers = st.sampled_from(WORKERS)
steps = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from(KEYS)),
    st.tuples(st.just("reply"), workers),
    st.tuples(st.just("register"), workers),
    st.tuples(st.just("again"), workers),
    st.tuples(st.just("leave"), workers),
    st.tuples(st.just("vanish"), workers),
    st.tuples(st.just("pulse"), workers),
    st.tuples(st.just("wait"), st.sampled_from([250, 1000, 4000])),
)


class World:
    """Two workers that know what they were asked, and the count of answers per request."""

    def __init__(self) -> None:
        self.desk = Desk(shards=2)
        self.epochs = dict.fromkeys(WORKERS, 1)
        self.inboxes: dict[str, list[tuple[int, bytes]]] = {worker: [] for worker in WORKERS}
        self.answered: Counter[int] = Counter()

    def take(self, step: str, argument) -> None:
        getattr(self, step)(argument)
        self.answered.update(answer.request for answer in self.desk.answers())

    def ask(self, key: bytes) -> None:
        worker = self.desk.enqueue(key)
        if worker is not None:
            self.inboxes[worker.decode()].append((self.desk.last_request, key))

    def reply(self, worker: str) -> None:
        for request, key in self.inboxes[worker]:
            header = pack_header(Enqueue.opcode, request, REPLY)
            if self.desk.router.from_worker(worker.encode(), CLIENT, header, key, b"", self.desk.now_ms):
                self.answered[request] += 1
        self.inboxes[worker].clear()

    def register(self, worker: str) -> None:
        self.epochs[worker] += 1
        self.inboxes[worker].clear()
        self.again(worker)

    def again(self, worker: str) -> None:
        self.desk.register(worker, epoch=self.epochs[worker], shards=(WORKERS.index(worker),))

    def leave(self, worker: str) -> None:
        self.desk.leave(worker)

    def vanish(self, worker: str) -> None:
        self.inboxes[worker].clear()
        self.desk.unreachable(worker)

    def pulse(self, worker: str) -> None:
        self.desk.pulse(worker)

    def wait(self, span_ms: int) -> None:
        self.desk.pass_ms(span_ms)


@given(st.lists(steps, max_size=60))
def test_every_request_gets_exactly_one_answer(story):
    world = World()
    for step in story:
        world.take(*step)
    world.take("wait", 8000)
    assert world.answered == Counter(range(1, world.desk.last_request + 1))
    for worker in world.desk.router._table.workers.values():
        assert (len(worker.in_flight), worker.in_flight.size_bytes) == (0, 0)
