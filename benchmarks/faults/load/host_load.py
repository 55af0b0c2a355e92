"""All that clients do on a cluster of several hosts while something is done to it, and what they found out."""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.faults.load.outages import MACHINE, PROBE_TIMEOUT_S, Fault, away_s, percentile, probe
from benchmarks.harness.report.results import Verified
from benchmarks.harness.workload import Run
from tests.support.cluster.client_records import ClientRecords, Load
from tests.support.cluster.cluster import eventually
from tests.support.cluster.faults import queue_on
from tests.support.cluster.rules import OrderedLoad, ThrottledLoad
from tests.support.hosts.nodes import Nodes

PRODUCERS, CONSUMERS = 4, 8
PAUSE_S = 0.1
"""Of a producer between two batches. Clients, hosts and brokers share one machine: more load would measure how long processes
wait for a core."""
RATE, BURST = 100, 40
EXCESS_MAX = 15
"""Deliveries over the limit: one is dated when its turn began, which may be before the tokens came that it used."""
CONTEXT = multiprocessing.get_context("spawn")
MESSAGES, AWAY, RULES = "Messages", "Seconds without success of a probe", "Rules"
ASLEEP = "(a thread that only sleeps)"
EXCESS = "deliveries over the limit in the worst window"
MUST_BE_ZERO = (
    "lost",
    "acked messages back",
    "attempts forgotten",
    "stored twice",
    "delivered again without a reason",
    "calls beyond their timeout",
    "keys out of order",
)


@dataclass
class Strike(Fault):
    """Something that was done; ``led``: the shards whose leaders it was done to."""

    led: frozenset[int] = frozenset()

    def whose(self, shard: int) -> str:
        """Return the kind of outage that a shard's span without success is."""
        if shard == MACHINE:
            return ASLEEP
        return f"{self.kind}: {'its queues' if shard in self.led else 'all other queues'}"


def led_by(nodes: Nodes, kind: str, *victims: str) -> Strike:
    """Begin a strike, when no shard is on its way. ``victims``: how the names of the processes begin that it is done to."""
    leaders: dict[int, str] = {}

    def all_are_led() -> bool:
        leaders.clear()
        leaders.update(nodes.leaders())
        return len(leaders) == nodes.shards

    eventually(all_are_led, "all shards are led")
    led = [shard for shard, leader in leaders.items() if victims and leader.startswith(victims)]
    return Strike(kind, victims, time.monotonic(), led=frozenset(led))


@dataclass
class Found:
    """What a run found out."""

    counts: dict[str, int] = field(default_factory=dict)
    away: dict[str, list[float]] = field(default_factory=dict)
    excess: float = 0.0
    errors: list[str] = field(default_factory=list)
    """That clients saw."""
    verified: Verified = field(default_factory=Verified)
    moments: dict[int, list[float]] = field(default_factory=dict)
    """When each shard's probe had success."""


class Clients:
    """The clients of a run, and their records."""

    def __init__(self, nodes: Nodes, seed: int, timeout: float = 5.0, ahead_ms: float = 0.0) -> None:
        self.nodes, self.records = nodes, ClientRecords()
        self.strikes: list[Strike] = []
        shards = range(nodes.shards)
        with nodes.client() as client:
            queues = [queue_on(client, shard, f"queue-{shard}", visibility_timeout=20.0) for shard in shards]
            options = {"default_ttl": 5.0, "dead_letter": "discard"}
            self._probed = [queue_on(client, shard, f"probe-{shard}", **options) for shard in shards]
            limited = [queue_on(client, shard, f"limited-{shard}", visibility_timeout=20.0) for shard in (0, shards[-1])]
            client.create_queue("ordered", max_in_flight_per_key=1, visibility_timeout=20.0)
        self._load = Load(nodes.endpoint, self.records, queues, seed, timeout)
        self._ordered = OrderedLoad(nodes.endpoint, "ordered", timeout=timeout)
        self._throttled = ThrottledLoad(nodes.endpoint, limited, rate=RATE, burst=BURST, timeout=timeout, ahead_ms=ahead_ms)
        self._pipe, theirs = CONTEXT.Pipe()
        self._prober = CONTEXT.Process(target=probe, args=(nodes.endpoint, self._probed, theirs))

    def start(self) -> None:
        """Begin."""
        self._prober.start()
        self._load.start(PRODUCERS, CONSUMERS, PAUSE_S)
        self._ordered.start()
        with self.nodes.client() as client:
            self._throttled.start(client)

    def strike(self, action: Callable[[], Strike]) -> Strike:
        """Do something to the cluster, and wait until all is served and followed again, as clients see it, too."""
        with self.records.fault():
            strike = action()
            self.nodes.until_whole()
            with self.nodes.client() as client:
                for queue in self._probed:
                    client.enqueue(queue, b"served again")
            time.sleep(PROBE_TIMEOUT_S / 2)  # a probe may wait between two attempts
            strike.ended = time.monotonic()
        self.strikes.append(strike)
        return strike

    def abandon(self) -> None:
        """End without looking at anything, after an error."""
        self._prober.kill()
        for part in (self._throttled, self._ordered, self._load):
            part.abandon()

    def stop(self) -> Found:
        """Empty all queues, and return what was found out."""
        self._pipe.send("stop")
        moments, late = self._pipe.recv()
        self._prober.join()
        self._throttled.stop()
        self._ordered.stop()
        self._load.stop(patience_s=120)
        records = self.records
        found = Found(excess=self._throttled.excess(), errors=records.refused, moments=moments)
        for strike in self.strikes:
            for shard, successes in moments.items():
                found.away.setdefault(strike.whose(shard), []).append(away_s(successes, strike))
        found.away = {name: sorted(spans) for name, spans in sorted(found.away.items())}
        found.counts = {
            "confirmed": records.confirmed + self._ordered.messages,
            "acked": records.acked,
            "lost": len(records.lost()),
            "acked messages back": len([text for text in records.wrong if "after its ack" in text]),
            "attempts forgotten": len([text for text in records.wrong if "was forgotten" in text]),
            "stored twice": len(records.stored_twice()),
            "delivered again, open meanwhile": records.duplicates() - len(records.unexplained()),
            "delivered again without a reason": len(records.unexplained()),
            "calls beyond their timeout": len(records.late) + len(late),
            "keys out of order": len(self._ordered.wrong()),
            "limited messages": self._throttled.delivered,
        }
        lost = found.counts["lost"]  # all others came; of some the answer to the ack was lost
        found.verified = Verified(records.confirmed, records.confirmed - lost, lost, found.counts["stored twice"])
        return found


@contextmanager
def clients_of(nodes: Nodes, seed: int, timeout: float = 5.0, ahead_ms: float = 0.0) -> Iterator[Clients]:
    """Start the clients of a run; call :meth:`Clients.stop` in the end. ``ahead_ms``: of the clocks of some hosts."""
    clients = Clients(nodes, seed, timeout, ahead_ms)
    clients.start()
    try:
        yield clients
    except BaseException:
        clients.abandon()
        raise


def report(run: Run[object], found: Found) -> None:
    """Add what was found out to a result, with what is promised whatever was done."""
    for name, count in found.counts.items():
        run.figure(MESSAGES, name, "fila-cluster", "", count)
    for name, spans in found.away.items():
        run.figure(AWAY, name, "times", "", len(spans))
        for column, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0)):
            run.figure(AWAY, name, column, "s", percentile(spans, share))
    run.figure(RULES, EXCESS, "fila-cluster", "", found.excess)
    run.verified.add(found.verified)
    for name in MUST_BE_ZERO:
        run.promise(f"{name}: {found.counts[name]}, none may", found.counts[name] == 0)
    run.promise(f"{found.excess:.1f} deliveries over the limit, at most {EXCESS_MAX}", found.excess <= EXCESS_MAX)


def promise_away(run: Run[object], found: Found, limits_s: dict[str, float]) -> None:
    """Note for each kind of strike whether its queues were away for no longer than they may."""
    for kind, limit_s in limits_s.items():
        longest = max(found.away.get(f"{kind}: its queues", [0.0]))
        run.promise(f"{kind}: its queues were away for {longest:.1f} s, at most {limit_s:g}", longest <= limit_s)
