"""Scenes of a queue with many messages, keys, consumers or leases, and of large and slow commands."""

from benchmarks.inside.driver import SMALL, Bench, driver, fill, question
from fila_proto_zmq import commands as c
from fila_worker.core.settings import ShardSettings

SLOW_HOOK = "function on_enqueue(m) local x = 0 for i = 1, 150000 do x = x + i end return {} end"
SLOW_FAILURE = "function on_failure(m) local x = 0 for i = 1, 150000 do x = x + i end return {action='retry'} end"


def many_keys(bench: Bench) -> None:
    """Ask a queue with many fairness keys and several priorities."""
    for keys, priorities in ((bench.keys, 1), (bench.keys, 8), (bench.keys // 4, 60)):
        scene = f"{keys:,} keys, {priorities} priorities"
        with driver() as drive:
            last = fill(drive, keys, priorities)
            high, low = last.id_high, last.id_low
            for what, command in (
                ("cancel the last message", c.Cancel(high, low + last.count - 1)),
                ("cancel what is not there", c.Cancel(high, low + 10_000_000)),
                ("why of a message", c.Explain((high, low + 1))),
                ("why of a queue", c.Explain()),
                ("browse", c.Browse(1000)),
                ("browse delayed ones", c.Browse(1000, state="delayed")),
                ("browse behind an id", c.Browse(1000, (high, low + 2))),
                ("describe", c.DescribeQueue()),
                ("statistics, one page", c.GetQueueStats()),
                ("64 pages of statistics in one turn", c.GetQueueStats()),
                (
                    "update the cap of each key",
                    c.UpdateQueue(c.QueueOptions(max_in_flight_per_key=2), ["max_in_flight_per_key"]),
                ),
                ("take the cap away", c.UpdateQueue(c.QueueOptions(), ["max_in_flight_per_key"])),
                ("pause a key", c.Pause(True, "tenant-000000001")),
                ("open a view", c.OpenView("v", ["q"], 10_000, 60_000)),
                ("a page of it", c.BrowseView("v", 1000)),
                ("64 pages of it", c.BrowseView("v", 1000)),
                ("receive", c.Receive(100_000, 0)),
                ("purge, one command", c.PurgeQueue()),
                ("delete the queue", c.DeleteQueue(True)),
            ):
                asked = [question(command)] * (64 if what.startswith("64") else 1)
                bench.time(drive, scene, what, *asked)


def consumers(bench: Bench) -> None:
    """Let clients leave, with many receives, subscriptions or leases."""
    count = max(10, bench.keys * 16 // 200)
    for what, demand in (
        ("receives", lambda number: c.Receive(1, 60_000)),
        ("subscriptions", lambda number: c.Subscribe(number + 1, 10)),
    ):
        with driver() as drive:
            drive.ask(c.CreateQueue(c.QueueOptions()))
            for start in range(0, count, 100):
                drive.turn(*(question(demand(start + each), client=b"leaver") for each in range(100)))
            bench.time(drive, f"{count:,} {what} of a client", "goodbye", question(c.Goodbye(), "", b"leaver"))
    for what, leave in (("goodbye", True), ("lost", False)):
        with driver(ShardSettings(consumer_timeout_ms=15_000)) as drive:
            fill(drive, bench.keys // 2)
            drive.turn(question(c.Subscribe(1, 100_000), client=b"leaver"))
            drive.settle()
            if leave:
                bench.time(
                    drive, f"{bench.keys // 2:,} messages leased by a client", what, question(c.Goodbye(), "", b"leaver")
                )
            else:
                drive.now_ms += 16_000
                bench.time(drive, f"{bench.keys // 2:,} messages leased by a client", what)
    with driver() as drive:
        drive.ask(c.CreateQueue(c.QueueOptions()))
        for _start in range(0, count, 100):
            drive.turn(*(question(c.Receive(1, 1000), client=b"c") for _ in range(100)))
        drive.now_ms += 2000
        bench.time(drive, f"{count:,} receives", "their time is up at once")


def settling(bench: Bench) -> None:
    """Settle as many messages as one frame may name."""
    fences = min(10_000, max(20, bench.keys // 20))
    for verb in (c.Verb.ACK, c.Verb.NACK, c.Verb.RELEASE, c.Verb.DEFER, c.Verb.FAIL):
        with driver() as drive:
            fill(drive, fences)
            drive.turn(question(c.Subscribe(1, 100_000), client=b"c"))
            drive.settle()
            leases = [
                (batch.lease, list(range(len(batch.records)))) for push in drive.pushed for batch in push.delivered.batches
            ]
            bench.time(drive, f"{fences:,} messages leased", verb.name.lower(), question(c.Settle(verb, leases), client=b"c"))
    with driver() as drive:
        drive.ask(c.CreateQueue(c.QueueOptions()))
        strange: c.Fences = [(number + 1, []) for number in range(fences)]
        bench.time(drive, f"{fences:,} unknown leases", "ack", question(c.Settle(c.Verb.ACK, strange), client=b"c"))
        bench.time(drive, f"{fences:,} unknown leases", "extend", question(c.Extend(strange, 1000), client=b"c"))


def hooks(bench: Bench) -> None:
    """Run hooks that take some milliseconds for each message."""
    count = min(600, max(5, bench.keys // 300))
    with driver() as drive:
        drive.ask(c.CreateQueue(c.QueueOptions(on_enqueue=SLOW_HOOK, on_failure=SLOW_FAILURE)))
        bench.time(drive, "a hook of 3.5 ms", f"enqueue of {count}", question(c.Enqueue([SMALL] * count)))
        several = [question(c.Enqueue([SMALL] * (count // 5))) for _ in range(4)]
        bench.time(drive, "a hook of 3.5 ms", f"4 enqueues of {count // 5}", *several)
        drive.turn(question(c.Subscribe(1, 100_000), client=b"c"))
        drive.settle()
        leases: c.Fences = [(batch.lease, []) for push in drive.pushed for batch in push.delivered.batches]
        drive.pushed.clear()
        drive.turn(question(c.Unsubscribe(1), client=b"c"))
        bench.time(drive, "a hook of 3.5 ms", "nack of all", question(c.Settle(c.Verb.NACK, leases), client=b"c"))


def enqueues(bench: Bench) -> None:
    """Send the largest enqueues, usual and unusual ones."""
    count = min(10_000, max(10, bench.keys // 20))
    with driver() as drive:
        drive.ask(c.CreateQueue(c.QueueOptions()))
        keys = [f"key-{number}" for number in range(count)]
        for what, command in (
            ("one key", c.Enqueue([SMALL] * count)),
            ("a key for each", c.Enqueue([SMALL] * count, keys)),
            ("delayed", c.Enqueue([SMALL] * count, delay_ms=1000)),
            ("with dedup ids", c.Enqueue([SMALL] * count, dedup_id=keys)),
            ("with a time to live", c.Enqueue([SMALL] * count, ttl_ms=1000)),
        ):
            bench.time(drive, f"enqueue of {count:,}", what, question(command))
        drive.now_ms += 3000
        bench.time(drive, f"enqueue of {count:,}", "delays and times to live end")
