"""All shards of a cluster on one virtual clock, what clients do with them by chance, and all that can be asked of them."""

import json
from collections.abc import Sequence
from copy import deepcopy
from itertools import count
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

from fila_cluster.run.supervisor.data_dir import DataDir
from fila_proto_zmq.commands import (
    Browse,
    Browsed,
    Cancel,
    CreateQueue,
    DeleteQueue,
    Enqueue,
    Enqueued,
    FetchReserved,
    GetQueueStats,
    Park,
    Pause,
    PutConfig,
    QueueOptions,
    Redrive,
    Reserve,
    SetConfig,
    Settle,
    Verb,
)
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.ids import format_id, parse_id
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import seal_envelope, unpack_record
from fila_worker.core.keys import FIRST, LAST
from fila_worker.core.settings import Limits, ShardSettings
from fila_worker.core.store import Store
from fila_worker.storage.made import mark_made
from fila_worker.storage.memory import MemoryStore
from fila_worker.storage.rocks import RocksStore
from tests.support.shard.linked_shards import LinkedShards
from tests.support.shard.shard import ADMIN, Got, ShardHarness

CLIENTS = (b"c1", b"c2", b"c3")
KEYS = ("a", "b", "c", "default")
SETTINGS = ShardSettings(
    dedup_window_ms=600_000,
    limits=Limits(
        acked_messages_max=6, finished_leases_max=20, ledger_entries_max=5, dedup_entry_ids_max=2, priorities_max=4
    ),
)

OPTIONS = (
    QueueOptions(),
    QueueOptions(max_attempts=2),
    QueueOptions(max_in_flight_per_key=1),
    QueueOptions(delivery="at_most_once"),
    QueueOptions(default_ttl_ms=20_000),
    QueueOptions(dead_letter="letters", max_attempts=1),
    QueueOptions(dead_letter="graves", max_attempts=1),
    QueueOptions(dead_letter="discard"),
    QueueOptions(idle_expiry_ms=900_000),
)
COLLECTORS = ("letters", "graves")
"""Queues that take dead letters of others. The order in which these come depends on the shards."""


class RandomCluster:
    """All shards of a cluster."""

    def __init__(self, stores: Sequence[Store], now_ms: int = 1_000_000) -> None:
        self.stores = list(stores)
        self.now_ms = now_ms
        total = len(self.stores)
        self.linked = LinkedShards(
            *range(total), settings=SETTINGS, stores=dict(enumerate(self.stores)), total=total, now_ms=now_ms
        )
        for station in self.linked.stations.values():
            station.checked = False  # after each turn it would take most of the time

    def home(self, queue: str) -> ShardHarness:
        """The shard of a queue."""
        return self.linked[shard_of(queue, len(self.stores))]

    def ask(self, command: Any, queue: str, client: bytes = ADMIN) -> Any:
        """The answer of a queue's shard, or its refusal as a value."""
        station = self.home(queue)
        number = station.send(command, queue, client)
        self._spread_parks()
        self.linked.carry()
        answer = station.late.pop(number, None)
        if isinstance(answer, FilaError):
            return type(answer).__name__
        return answer

    def _spread_parks(self) -> None:
        for station in self.linked.stations.values():
            for post in [post for post in station.posted if isinstance(post.command, Park)]:
                station.posted.remove(post)
                for other in self.linked.stations.values():
                    if other is not station:
                        other.shard.park(post.command.parks, other.now_ms)
                        other.turn()

    def configure(self, key: str, value: str | None) -> None:
        """Change the runtime config on all shards."""
        change = self.linked[0].shard.set_config(SetConfig(key, value), self.now_ms)
        for station in self.linked.stations.values():
            station.shard.put_config(PutConfig(change.version, change.changes), self.now_ms)
            station.turn()

    def pass_time(self, milliseconds: int) -> None:
        """Move all clocks."""
        self.now_ms += milliseconds
        self.linked.pass_time(milliseconds)

    def queues(self) -> list[str]:
        """The names of all queues."""
        return sorted(name for station in self.linked.stations.values() for name in station.shard.queues)

    def browse(self, queue: str) -> Browsed:
        """All messages of a queue."""
        page = self.ask(Browse(1000), queue)
        assert isinstance(page, Browsed), page
        return page

    def check(self) -> None:
        """Check the invariants of all shards."""
        for station in self.linked.stations.values():
            station.shard.check()

    def copy(self) -> list[MemoryStore]:
        """What is on the disks, as a crash would leave it."""
        return [copied(store) for store in self.stores]


def copied(store: Store) -> MemoryStore:
    """A copy of a store in memory."""
    assert isinstance(store, MemoryStore)
    other = MemoryStore()
    for mine, theirs in zip(other.families, store.families, strict=True):
        mine.update(deepcopy(dict(theirs)))
    return other


class Life:
    """Clients that do things by chance. ``held``: what they got and did not settle, by queue."""

    def __init__(self, random_cluster: RandomCluster, seed: int) -> None:
        self.random_cluster, self.chance = random_cluster, Random(seed)
        self.numbers = count()
        self.names = [*COLLECTORS, *(f"q{number}" for number in range(10))]
        self.held: dict[str, list[tuple[bytes, Got]]] = {}
        self.ids: dict[str, str] = {}
        """The queue of each message's enqueue, by id."""
        self.repeated: set[str] = set()
        """Ids that were given out before."""
        for name in self.names:
            self.create(name)

    def create(self, name: str) -> None:
        options = QueueOptions() if name in COLLECTORS else self.chance.choice(OPTIONS)
        self.random_cluster.ask(CreateQueue(options), name)

    def move(self, random_cluster: RandomCluster) -> None:
        """Go on in another random_cluster with the same messages."""
        self.random_cluster = random_cluster

    def go_on(self, steps: int) -> None:
        """Do so many things."""
        acts = [self.enqueue, self.enqueue, self.enqueue, self.receive, self.receive, self.settle, self.settle, self.rare]
        for _ in range(steps):
            self.chance.choice(acts)()

    def enqueue(self) -> None:
        pick = self.chance.choice
        queue = pick(self.names)
        envelopes = [seal_envelope(b"%d" % next(self.numbers)) for _ in range(self.chance.randint(1, 4))]
        dedup = [f"d{self.chance.randint(0, 40)}" for _ in envelopes] if self.chance.random() < 0.2 else ""
        command = Enqueue(
            envelopes,
            pick(KEYS),
            weight=pick([0, 0, 3]),
            priority=pick([0, 0, 0, -5, 7]),
            delay_ms=pick([0, 0, 0, 2_000, 50_000]),
            ttl_ms=pick([0, 0, 0, 0, 15_000, 200_000]),
            throttle_keys=[list(pick([(), (), (), ("t1",), ("t1", "t2")]))] * len(envelopes),
            dedup_id=dedup,
            dedup_last=dedup != "" and len(envelopes) % 2 == 0,
        )
        reply = self.random_cluster.ask(command, queue, b"p")
        if isinstance(reply, Enqueued):
            given = {format_id(reply.id_high, reply.id_low + offset) for offset in range(reply.count)}
            self.repeated |= given & self.ids.keys()
            self.ids |= dict.fromkeys(given, queue)

    def receive(self) -> None:
        queue, client = self.chance.choice([*self.names, "q1.dlq"]), self.chance.choice(CLIENTS)
        if queue not in self.random_cluster.home(queue).shard.queues:
            return
        for each in self.random_cluster.home(queue).receive(self.chance.randint(1, 4), queue, client):
            self.held.setdefault(queue, []).append((client, each))

    def settle(self) -> None:
        queues = [name for name, held in self.held.items() if held]
        if not queues:
            return
        queue = self.chance.choice(queues)
        client, got = self.held[queue].pop(self.chance.randrange(len(self.held[queue])))
        verb = self.chance.choice(list(Verb))
        after_ms = self.chance.choice([0, 3_000]) if verb in {Verb.RETRY, Verb.DEFER} else 0
        error = "boom" if verb in {Verb.NACK, Verb.FAIL} else ""
        self.random_cluster.ask(Settle(verb, [(got.lease, [got.index])], error=error, after_ms=after_ms), queue, client)

    def rare(self) -> None:
        pick, random_cluster = self.chance.choice, self.random_cluster
        queue = pick(self.names)
        match self.chance.randrange(9):
            case 0:
                random_cluster.ask(Pause(pick([True, False])), queue)
            case 1:
                random_cluster.ask(Pause(pick([True, False]), pick(KEYS)), queue)
            case 2:
                random_cluster.configure(f"k{pick([1, 2])}", pick(["x", "y", None]))
            case 3:
                random_cluster.ask(Redrive(pick([0, 2])), pick([f"{queue}.dlq", *COLLECTORS]))
            case 4:
                random_cluster.ask(Reserve(pick(["r1", "r2"]), pick([0, 1]), 2, 60_000, 0), queue, b"spark")
            case 5 if queue not in COLLECTORS:
                random_cluster.ask(DeleteQueue(force=True), queue)
                self.held.pop(queue, None)
                self.create(queue)
            case 6:
                random_cluster.pass_time(pick([100, 1_000, 4_000]))
            case 7:
                lost = pick([True, True, False])
                random_cluster.linked.copies = lambda command: 0 if lost else 1
            case _:
                pick(list(random_cluster.linked.stations.values())).restart()


class Answers:
    """All that a random_cluster answers, by what was asked. Two random_clusters with the same messages answer the same."""

    def __init__(self, random_cluster: RandomCluster, life: Life) -> None:
        self._town, self._life = random_cluster, life
        self.said: dict[str, Any] = {}

    def ask(self) -> dict[str, Any]:
        """Ask everything, and return the answers."""
        random_cluster = self._town
        random_cluster.linked.copies = lambda command: 1
        random_cluster.linked.carry()
        random_cluster.pass_time(3_000)  # what was on its way arrives
        random_cluster.check()
        self.said["queues"] = random_cluster.queues()
        configs = [(dict(each.shard.config), each.shard.config_version) for each in random_cluster.linked.stations.values()]
        assert all(each == configs[0] for each in configs) or len(configs) > 0
        self.said["config"] = max(configs, key=lambda each: each[1])
        for queue in random_cluster.queues():
            self._look(queue)
        self._settle()
        self._send_again()
        for queue in random_cluster.queues():
            self._cancel(queue)
        self._empty()
        random_cluster.check()
        return self.said

    def _look(self, queue: str) -> None:
        info = self._town.ask(GetQueueStats(), queue).info
        self.said[f"{queue}: counts"] = (info.pending, info.in_flight, info.delayed, info.paused)
        for name in ("r1", "r2"):
            for part in (0, 1):
                fetched = self._town.ask(FetchReserved(name, part), queue, b"spark")
                shown = fetched if isinstance(fetched, str) else [bytes(each) for each in fetched.batches[0].records]
                self.said[f"{queue}: reserved {name} {part}"] = shown
        seen = [
            (
                m.state,
                m.fairness_key,
                0 if _mixed(queue) else m.weight,  # the last message that came sets it
                m.throttle_keys,
                m.due_ms,
                m.leased_ms,
                m.lease_expires_ms,
                m.consumer,
                m.record,
            )
            for m in self._town.browse(queue).messages
        ]
        self.said[f"{queue}: messages"] = sorted(seen, key=repr) if _mixed(queue) else seen

    def _settle(self) -> None:
        """Ack every other delivery that is held."""
        for queue, held in sorted(self._life.held.items()):
            for client, got in held[::2]:
                reply = self._town.ask(Settle(Verb.ACK, [(got.lease, [got.index])]), queue, client)
                late = reply if isinstance(reply, str) else [type(fault[2]).__name__ for fault in reply.faults]
                self.said[f"{queue}: ack of {got.id} {got.lease}"] = late

    def _send_again(self) -> None:
        """Send a message for each dedup id, which replaces the one that it names."""
        names = [f"d{number}" for number in range(41)]
        for queue in self._life.names:
            reply = self._town.ask(
                Enqueue([seal_envelope(b"again") for _ in names], dedup_id=names, dedup_last=True), queue, b"p"
            )
            known = [(index, format_id(high, low)) for index, high, low in getattr(reply, "known", ())]
            self.said[f"{queue}: known dedup ids"] = known if isinstance(reply, Enqueued) else reply

    def _cancel(self, queue: str) -> None:
        """Cancel every fourth of the old messages by its id."""
        messages = [unpack_record(each.record) for each in self._town.browse(queue).messages]
        ids = [format_id(each.id_high, each.id_low) for each in messages]
        for text in sorted(each for each in ids if each in self._life.ids)[::4]:
            reply = self._town.ask(Cancel(*parse_id(text)), queue)
            self.said[f"{queue}: cancel {text}"] = reply if isinstance(reply, str) else reply.removed

    def _empty(self) -> None:
        """Let time pass, and consume everything."""
        random_cluster = self._town
        for queue in random_cluster.queues():
            random_cluster.ask(Pause(False), queue)
            for key in KEYS:
                random_cluster.ask(Pause(False, key), queue)
        for span_ms in (0, 5_000, 30_000, 60_000, 700_000):
            random_cluster.pass_time(span_ms)
            for queue in random_cluster.queues():
                seen = []
                while got := random_cluster.home(queue).receive(1, queue, b"last"):
                    seen += [
                        (each.id if each.id in self._life.ids else "new", each.payload, each.key, each.attempts)
                        for each in got
                    ]
                    random_cluster.ask(Settle(Verb.ACK, [(got[0].lease, [])]), queue, b"last")
                seen.sort(key=None if _mixed(queue) else itemgetter(2) if span_ms else lambda each: 0)
                self.said[f"{queue}: consumed after {span_ms}"] = seen


def answers(stores: Sequence[MemoryStore], life: Life) -> dict[str, Any]:
    """What a cluster with these shards answers, started at the present time. The stores stay as they are."""
    return Answers(RandomCluster([copied(store) for store in stores], life.random_cluster.now_ms), life).ask()


def _mixed(queue: str) -> bool:
    return queue.removesuffix(".dlq") in COLLECTORS


def persist(stores: Sequence[MemoryStore], data_dir: Path) -> None:
    """Write shards as the data directory of a stopped cluster."""
    directory = DataDir(data_dir)
    directory.claim(len(stores))
    directory.release()
    for index, store in enumerate(stores):
        path = data_dir / f"shard-{index:04d}"
        disk = RocksStore(path)
        batch = disk.new_batch()
        for mine, theirs in zip(store.families, disk.families, strict=True):
            for key, value in mine.items():
                batch.put(key, value, theirs)
        disk.commit(batch, sync=True)
        disk.close()
        mark_made(path)


def stored(data_dir: Path) -> list[MemoryStore]:
    """What the shards of a stopped cluster have on disk."""
    found = []
    for index in range(json.loads((data_dir / "fila.json").read_text())["shards"]):
        disk, store = RocksStore(data_dir / f"shard-{index:04d}"), MemoryStore()
        for mine, theirs in zip(store.families, disk.families, strict=True):
            mine.update(dict(disk.scan(FIRST, LAST, theirs)))
        disk.close()
        found.append(store)
    return found
