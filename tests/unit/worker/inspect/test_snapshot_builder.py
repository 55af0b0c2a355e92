"""A view is opened in steps: it shows the moment at which its opening began."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from fila_proto_zmq.commands import (
    Browse,
    Cancel,
    Cancelled,
    DeleteQueue,
    Enqueue,
    OpenView,
    Pause,
    PurgeQueue,
    Receive,
    Verb,
    ViewOpened,
)
from fila_proto_zmq.errors import OverloadedError
from fila_proto_zmq.ids import parse_id
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.deliver.delivery import deliver
from fila_worker.core.effects import ClientCall
from fila_worker.core.inspect import snapshot, views
from fila_worker.core.inspect.browse import browse
from fila_worker.core.inspect.views import Views
from fila_worker.core.jobs import REST_MS, Work
from fila_worker.core.model.fairness_keys import KeyTable
from fila_worker.core.model.leases import SETTLED
from fila_worker.core.settings import Limits, ShardSettings
from fila_worker.core.settle import failed_attempts
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.shard import ADMIN, Got, ShardHarness, finished, limited
from tests.support.shard.views import in_view, payloads


def begin_to_open(shard: ShardHarness, *queues: str) -> "Work":
    """An opening whose moment is now; of the lanes the first one is copied."""
    call = ClientCall(ADMIN, 0, "q", shard.now_ms)
    work = views.open_view(shard.shard, call, OpenView("v", list(queues or ["q"]), 10, 600_000))
    next(work)
    shard.turn()
    return work


def go_on(shard: ShardHarness, work: "Work") -> None:
    """Take the other steps, each in a turn of its own."""
    with suppress(StopIteration):
        while True:
            work.send(shard.now_ms)
            shard.turn()
    assert not shard.shard.ledger.watches


def deliver_what_is_too_old(shard: ShardHarness, held: list[Got]) -> None:
    shard.now_ms += 2_000
    shard.shard.apply(ClientCall(b"c1", 1_000, "q", shard.now_ms), Receive(9, 0))
    deliver(shard.shard, shard.now_ms)  # before the due index comes to them
    shard.turn()


def let_times_to_live_end(shard: ShardHarness, held: list[Got]) -> None:
    shard.pass_time(3_000)


def retry_the_last_one_first(shard: ShardHarness, held: list[Got]) -> None:
    for lease in list(shard.shard.leases.leases.values()):
        attempt = failed_attempts.Attempt("", shard.now_ms, after_ms=500)
        failed_attempts.fail_attempts(shard.shard, lease, [each.index for each in reversed(held)], SETTLED, attempt)
    shard.turn()


MEANWHILE: dict[str, Callable[[ShardHarness, list[Got]], object]] = {
    "nothing": lambda shard, held: None,
    "more comes": lambda shard, held: shard.enqueue(b"new", key="k", priority=-1, weight=9),
    "it is purged": lambda shard, held: shard.ask(PurgeQueue()),
    "a key is purged": lambda shard, held: shard.ask(PurgeQueue("k")),
    "all is delivered": lambda shard, held: shard.receive(99),
    "all is delivered and acked": lambda shard, held: shard.ack(held + shard.receive(99)),
    "one by one is acked": lambda shard, held: [shard.ack([each]) for each in [*held, *shard.receive(99)]],
    "what was leased is given back": lambda shard, held: shard.settle(Verb.RELEASE, held),
    "what was leased fails": lambda shard, held: shard.settle(Verb.FAIL, held),
    "what was leased is retried": retry_the_last_one_first,
    "its lease expires": lambda shard, held: shard.pass_time(40_000),
    "it is too old when it is delivered": deliver_what_is_too_old,
    "times to live end": let_times_to_live_end,
    "delays end": lambda shard, held: shard.pass_time(6_000),
    "the queue is deleted": lambda shard, held: shard.ask(DeleteQueue(force=True), "q", ADMIN),
    "it is paused": lambda shard, held: shard.ask(Pause(True)),
}


@pytest.mark.parametrize("meanwhile", MEANWHILE.values(), ids=MEANWHILE)
@pytest.mark.parametrize("leased", [0, 2, 4])
@pytest.mark.parametrize("warm", [0, 100])
def test_a_view_shows_the_moment_at_which_its_opening_began(
    warm: int, leased: int, meanwhile: Callable[[ShardHarness, list[Got]], object]
) -> None:
    limits = Limits(step_effort=2, walk_keys_max=1, warm_lanes_max=warm, warm_small_lanes_max=warm, ledger_entries_max=3)
    shard = ShardHarness(settings=ShardSettings(consumer_timeout_ms=1 << 40, limits=limits))
    shard.create()
    for name in ("k", "l"):
        shard.enqueue(b"0", b"1", b"2", b"3", key=name)
    held = shard.receive(leased) if leased else []
    shard.enqueue(b"4", key="m", delay_ms=5_000)
    for number, ttl_ms in ((5, 1_000), (6, 0), (7, 2_000), (8, 1_000)):
        shard.enqueue(b"%d" % number, key="n" if number < 7 else "o", ttl_ms=ttl_ms)
    shard.enqueue(b"9", key="copied at once")
    queue = shard.shard.queues["q"]
    first = queue.keys["copied at once"]
    table = KeyTable(limits.key_table_part_max)
    for key in dict.fromkeys([first, *queue.keys.values()]):
        table.add(key)
    queue.keys = table
    before = finished(browse(shard.shard, ClientCall(ADMIN, 0, "q", shard.now_ms), Browse(100)), shard.now_ms)
    work = begin_to_open(shard)
    meanwhile(shard, held)
    go_on(shard, work)
    shown = in_view(shard)
    assert sorted(map(repr, shown)) == sorted(map(repr, before.messages))  # type: ignore[union-attr]
    assert [queue.messages for queue in shard.shard.part(Views).by_name["v"].opened.queues] == [len(shown)]


def test_a_step_of_an_opening_copies_a_bounded_number_of_lanes() -> None:
    shard = ShardHarness(settings=limited(step_effort=20, view_names_at_once=8))
    shard.create()
    for number in range(60):
        shard.enqueue(b"", key=f"k{number:02}")
    work = views.open_view(shard.shard, ClientCall(ADMIN, 0, "q", shard.now_ms), OpenView("v", ["q"], 10, 600_000))
    efforts = [next(work)]
    with suppress(StopIteration):
        while True:
            efforts.append(work.send(shard.now_ms))
    assert max(efforts) <= 20
    assert len(efforts) >= 60 * snapshot.LANE_COST // 20 + 60 // 8 + 60 * snapshot.BUILD_KEY_COST // 20
    assert len(in_view(shard)) == 60


def test_who_asks_for_a_view_that_is_being_opened_waits_for_it() -> None:
    shard = ShardHarness(settings=limited(turn_effort=1, step_effort=1))
    shard.create()
    for number in range(9):
        shard.enqueue(b"", key=f"k{number}")
    first = shard.begin(OpenView("v", ["q"], 3, 60_000), client=b"one")
    second = shard.begin(OpenView("v", ["q"], 1, 60_000), client=b"other")
    while not {first, second} <= shard.late.keys():
        assert len(shard.shard.ledger.watches) <= 1
        shard.pass_time(REST_MS)
    assert shard.late[first] == shard.late[second]


def test_views_that_are_being_opened_count() -> None:
    shard = ShardHarness(settings=limited(turn_effort=1, step_effort=1, views_max=2))
    shard.create()
    for number in range(9):
        shard.enqueue(b"", key=f"k{number}")
    asked = [shard.begin(OpenView(f"v{number}", ["q"], 3, 60_000), client=b"%d" % number) for number in range(3)]
    while not set(asked) <= shard.late.keys():
        shard.turn()
    assert [type(shard.late[number]) for number in asked] == [ViewOpened, ViewOpened, OverloadedError]


class SlowStore(MemoryStore):
    """A store that is ready for a pin when a test says so."""

    ready = False

    def ready_to_pin(self, families: object) -> bool:
        return self.ready


def test_an_opening_rests_until_little_memory_would_be_pinned() -> None:
    shard = ShardHarness(store=SlowStore())
    shard.create()
    shard.enqueue(b"early")
    number = shard.begin(OpenView("v", ["q"], 3, 60_000))
    assert shard.shard.next_due(shard.now_ms) == REST_MS, "the loop may sleep"
    shard.begin(Enqueue([seal_envelope(b"meanwhile")]), client=b"producer")
    assert number not in shard.late
    SlowStore.ready = True
    shard.pass_time(REST_MS)
    SlowStore.ready = False
    assert isinstance(shard.late[number], ViewOpened)
    assert payloads(in_view(shard)) == [b"early", b"meanwhile"]


def test_an_opening_does_not_wait_for_ever_for_a_slow_disk() -> None:
    shard = ShardHarness(store=SlowStore(), settings=limited(view_wait_ms_max=100))
    shard.create()
    number = shard.begin(OpenView("v", ["q"], 3, 60_000))
    shard.pass_time(99)
    assert number not in shard.late
    shard.pass_time(REST_MS)
    assert isinstance(shard.late[number], ViewOpened)


def test_other_jobs_go_on_while_an_opening_rests() -> None:
    shard = ShardHarness(store=SlowStore(), settings=limited(turn_effort=4, step_effort=1))
    shard.create()
    ids = [shard.enqueue(b"", key=f"k{number}")[0] for number in range(20)]
    shard.begin(OpenView("v", ["q"], 3, 60_000))
    number = shard.begin(Cancel(*parse_id(ids[-1])), client=b"other")
    for _ in range(30):
        shard.turn()
    assert shard.late[number] == Cancelled(True)
    assert shard.shard.next_due(shard.now_ms) == REST_MS


def test_a_queue_that_is_deleted_while_its_opening_rests_is_not_shown() -> None:
    shard = ShardHarness(store=SlowStore())
    shard.create()
    number = shard.begin(OpenView("v", ["q"], 3, 60_000))
    shard.begin(DeleteQueue(), client=b"other")
    SlowStore.ready = True
    shard.pass_time(REST_MS)
    SlowStore.ready = False
    assert shard.late[number] == ViewOpened([])
    assert not shard.shard.part(Views).by_name
    assert not shard.shard.part(Views).opening
