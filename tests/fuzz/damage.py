"""Damaged shards: bits turned and files cut at random, and what check and salvage may say of them.

``python -m tests.fuzz.damage --count 10000`` plays many; a seed plays one again.

Never a crash. Never clean when a message is missing or another one. And salvaged is each message whose bytes no damage is near.
"""

import argparse
import gc
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fila_proto_zmq.commands import Enqueue, Verb
from fila_proto_zmq.errors import StorageError
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import seal_envelope, unpack_record
from fila_worker.check.directory import check_path
from fila_worker.check.salvage import Salvage
from fila_worker.core.keys import FIRST, LAST
from fila_worker.core.model.due_index import parse_delayed
from fila_worker.storage.log_files import TornError, records
from fila_worker.storage.made import mark_made
from fila_worker.storage.offline import OfflineStore
from fila_worker.storage.rocks import RocksStore
from tests.support.shard.shard import SHARDS, ShardHarness, limited

INDEX = 3
QUEUES = [name for name in map("q{}".format, range(200)) if shard_of(name, SHARDS) == INDEX][:3]
STATES = ("closed", "killed", "reopened")
NEAR_BYTES = 80 * 1024
"""The bytes around damage that may be unreadable with it: a block of a table, or a record of a log and the blocks it is in."""

ROCKSDICT_FILE = "rocksdict-config.json"

Ids = dict[tuple[int, int], bytes]
"""The envelope of each message, by id."""


@dataclass
class Stored:
    """A sound shard: its directory, its messages, and which files the damage may hit."""

    path: Path
    messages: Ids


@dataclass
class Damage:
    """What was done to a file. ``at``: where; a cut removes all behind it."""

    file: str
    at: int
    cut: bool


class WrongError(AssertionError):
    """A check or a salvage said what is not so."""


# --- sound shards -----------------------------------------------------------------------------------------------------


def stored(folder: Path, state: str, seed: int = 0) -> Stored:
    """A shard with messages in all places, closed well, killed, or killed after it had been closed and opened again."""
    path = folder / state / "shard-0003"
    live = folder / state / "live"
    random = Random(seed)
    store = RocksStore(live)
    _live(store, random, first=True)
    gc.collect()  # a shard that is dropped may hold handles of its store
    if state != "killed":
        store.close()
    if state == "reopened":
        store = RocksStore(live)
        _live(store, random, first=False)
        gc.collect()
    shutil.copytree(live, path)
    (path / "LOCK").unlink(missing_ok=True)
    mark_made(path)
    if state != "closed":
        store.close()
    shutil.rmtree(live)
    return Stored(path, messages_of(path))


def _live(store: RocksStore, random: Random, *, first: bool) -> None:
    now_ms = 1_000_000 if first else 1_010_000
    harness = ShardHarness(store=store, settings=limited(ledger_counts_max=300), index=INDEX, checked=False, now_ms=now_ms)
    for queue in QUEUES:
        if first:
            harness.create(queue)
        for number in range(12):
            payloads = [random.randbytes(random.choice([20, 300, 1500])) for _ in range(25)]
            harness.enqueue(*payloads, queue=queue, key=f"key{number % 4}", priority=number % 3)
        harness.enqueue(random.randbytes(40_000), queue=queue)
        harness.enqueue(b"later" + random.randbytes(50), queue=queue, delay_ms=100_000)
        envelopes = [seal_envelope(random.randbytes(60), {"a": "b"}) for _ in range(5)]
        harness.ask(Enqueue(envelopes, "key1", ttl_ms=600_000, dedup_id=[random.randbytes(5).hex() for _ in range(5)]), queue)
        harness.ack(harness.receive(20, queue), queue)
        harness.settle(Verb.NACK, harness.receive(5, queue), queue, error="again")
        harness.receive(7, queue)
    harness.pass_time(1000)


def messages_of(path: Path) -> Ids:
    """All messages of a shard that can be read without an error."""
    store = OfflineStore(path)
    try:
        found = {}
        for _, record in store.scan(FIRST, LAST, store.families.messages):
            note(found, record)
        for _, value in store.scan(FIRST, LAST, store.families.delayed):
            note(found, parse_delayed(value).record)
        return found
    finally:
        store.close()


def note(found: Ids, data: bytes) -> None:
    record = unpack_record(data)
    found[record.id_high, record.id_low] = record.envelope


# --- damage -----------------------------------------------------------------------------------------------------------


def hurt(path: Path, random: Random) -> list[Damage]:
    """Turn some bits, or cut files."""
    files = sorted(file for file in path.iterdir() if file.stat().st_size and not file.name.startswith(("LOG", "LOCK")))
    data_files = [file for file in files if file.suffix in {".sst", ".log", ".blob"}] or files
    done = []
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        file = random.choice(data_files if random.random() < 0.7 else files)
        content = bytearray(file.read_bytes())
        if not content:
            continue
        at = random.randrange(len(content))
        cut = random.random() < 0.3
        if cut:
            del content[at:]
        else:
            content[at] ^= 1 << random.randrange(8)
        file.write_bytes(content)
        done.append(Damage(file.name, at, cut))
    return done


def intact(path: Path, messages: Ids, done: list[Damage]) -> Ids:
    """The messages that must be salvaged: there is a copy of their bytes that no damage is near."""
    found: Ids = {}
    contents = {file.name: file.read_bytes() for file in path.iterdir() if file.suffix in {".sst", ".log", ".blob"}}
    hits: dict[str, list[int]] = {}
    for damage in done:
        hits.setdefault(damage.file, []).append(damage.at)
    names = {damage.file.partition("-")[0] for damage in done}
    if names & {"MANIFEST", "CURRENT"} and "OPTIONS" in names:
        return {}  # nothing says any more which family is which
    for ids, envelope in messages.items():
        for name, content in contents.items():
            at = content.find(envelope[:1024])
            if at >= 0 and _far(at, len(envelope), name, content, hits.get(name, []), done):
                found[ids] = envelope
                break
    return found


def _far(at: int, length: int, name: str, content: bytes, hits: list[int], done: list[Damage]) -> bool:
    if not hits:
        return not (name.endswith(".blob") and any(each.file.endswith(".sst") for each in done))
    if not name.endswith(".log"):  # its index, at the end, may be hit
        if any(each.file.startswith("MANIFEST") for each in done):
            return False  # without a manifest, RocksDB leaves out a damaged table
        cut = any(each.cut for each in done if each.file == name)
        if cut or any(hit > len(content) - NEAR_BYTES for hit in hits):
            return False
    return all(abs(hit - at) > NEAR_BYTES + length for hit in hits)


# --- the oracle -------------------------------------------------------------------------------------------------------


def play(sound: Stored, scratch: Path, random: Random) -> str:
    """Damage a copy of a shard, check and salvage it. Returns ``clean`` or ``found``; raises :class:`WrongError`."""
    path = scratch / sound.path.name
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(sound.path, path)
    mark_made(path)
    done = hurt(path, random)
    before = _files(path)
    findings = check_path(path, INDEX, SHARDS)
    if check_path(path, INDEX, SHARDS).counts != findings.counts:
        raise WrongError(f"{done}: a second check finds something else")
    if not len(findings):
        _compare_clean(path, sound, done)
    _compare_salvaged(path, sound, done, scratch)
    if before != _files(path):
        raise WrongError(f"{done}: something was written")
    return "found" if len(findings) else "clean"


def _files(path: Path) -> dict[str, bytes]:
    """What is in a directory; without the file that rocksdict writes whenever it opens one."""
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != ROCKSDICT_FILE}


def _compare_clean(path: Path, sound: Stored, done: list[Damage]) -> None:
    left = messages_of(path)
    if left != sound.messages and not _cut_between_records(sound.path, done):
        raise WrongError(f"{done}: clean, and {len(sound.messages) - len(left)} messages are missing")


def _cut_between_records(sound: Path, done: list[Damage]) -> bool:
    """Whether a log was cut where a record ends: that is what a power cut before the next write leaves."""
    logs = [damage for damage in done if damage.cut and damage.file.endswith(".log")]
    for damage in logs:
        part = sound.parent / "part"
        part.write_bytes((sound / damage.file).read_bytes()[: damage.at])
        try:
            for _ in records(part):
                pass
        except TornError:
            continue
        return True
    return False


def _compare_salvaged(path: Path, sound: Stored, done: list[Damage], scratch: Path) -> None:
    salvaged: Ids = {}
    try:
        for each in Salvage(path, scratch).messages():
            note(salvaged, each.record)
    except StorageError as error:
        if intact(path, sound.messages, done):
            raise WrongError(f"{done}: nothing salvaged: {error}") from error
    wrong = [ids for ids, envelope in salvaged.items() if sound.messages.get(ids, envelope) != envelope]
    if wrong:
        raise WrongError(f"{done}: {len(wrong)} salvaged messages are not what was stored")
    missing = intact(path, sound.messages, done).keys() - salvaged.keys() - _acked(sound)
    if missing:
        raise WrongError(f"{done}: {len(missing)} readable messages were not salvaged, {len(salvaged)} were")


def _acked(sound: Stored) -> set[tuple[int, int]]:
    whole: Ids = {}
    for each in Salvage(sound.path, sound.path.parent).messages():
        note(whole, each.record)
    return sound.messages.keys() - whole.keys()


def run(count: int, first: int, *, stop: bool = True) -> Counter[str]:
    """Play ``count`` damages from seed ``first`` on."""
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        shards = [stored(Path(folder), state) for state in STATES]
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        for seed in range(first, first + count):
            random = Random(seed)
            try:
                outcomes[play(random.choice(shards), scratch, random)] += 1
            except Exception as error:
                if stop:
                    raise WrongError(f"seed {seed}: {error}") from error
                print(f"seed {seed}: {type(error).__name__} {error}", flush=True)
                outcomes["wrong"] += 1
    return outcomes


def main() -> int:
    """Run; the exit code is 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.damage", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    arguments = parser.parse_args()
    started = time.monotonic()
    outcomes = run(arguments.count, arguments.seed, stop=False)
    print(f"{arguments.count:,} damaged shards in {time.monotonic() - started:.0f} s: {dict(outcomes)}")
    return 1 if outcomes["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
