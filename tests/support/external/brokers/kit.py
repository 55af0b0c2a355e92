"""The kit that brokers run from, made once for each user and kept in the cache: jars, a formatted data folder, a class archive.

Each piece is made under another name and renamed when it is complete. A lock keeps a second test process from making it too, so
what is there is whole. A class archive (JDK 13 and later) holds parsed classes of an earlier run: a broker starts in half the time.
"""

import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from fila_cluster.run.supervisor.endpoints import Ports
from tests.support.cached import draft_of, locked
from tests.support.external.brokers import programs
from tests.support.external.brokers.broker import TAIL_BYTES, Broker, BrokerError
from tests.support.external.brokers.guard import Guard
from tests.support.external.brokers.properties import identity, properties_of, reserve

FETCH_S_MAX = 240.0
FORMAT_S_MAX = 120.0
JVM = (
    "-Xms64m", "-Xmx256m", "-Xss512k", "-XX:MaxMetaspaceSize=128m", "-XX:ReservedCodeCacheSize=48m",
    "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.awt.headless=true",
)  # fmt: skip
"""For a small machine that starts many brokers: a quick start and little memory, rather than speed."""


@dataclass(frozen=True, slots=True)
class Kit:
    """What brokers run from."""

    java: str
    jars: Path
    formatted: Path
    """A data folder as Kafka formats it, without the file that says whose it is."""
    archive: Path | None = None

    def command(self, broker: Broker, *, archive_to: Path | None = None) -> list[str]:
        """The command line of a broker."""
        options = [] if self.archive is None else [f"-XX:SharedArchiveFile={self.archive}"]
        options += [] if archive_to is None else [f"-XX:ArchiveClassesAtExit={archive_to}"]
        return [*java_command(self.java, self.jars, broker, *options), "kafka.Kafka", str(broker.properties)]

    def furnish(self, broker: Broker, cluster_id: str, properties: Mapping[str, object]) -> None:
        """Make the folder of a new broker."""
        broker.configure(properties)
        shutil.copytree(self.formatted, broker.data)
        facts = {"version": 1, "cluster.id": cluster_id, "node.id": properties["node.id"], "directory.id": identity()}
        (broker.data / META).write_text("".join(f"{key}={value}\n" for key, value in facts.items()))


META = "meta.properties"


def java_command(java: str, jars: Path, broker: Broker, *options: str) -> list[str]:
    classpath = ":".join(sorted(map(str, jars.glob("*.jar"))))  # in one order: an archive fits no other
    return [java, *JVM, f"-Dlog4j2.configurationFile={broker.logging}", *options, "-cp", classpath]


@cache
def kit() -> Kit:
    """The kit, made first if it is not there: half a minute, and a network, for the first time."""
    java = programs.java()
    assert java is not None, "ask what_brokers_lack() before"
    folder = programs.kit_folder()
    folder.mkdir(parents=True, exist_ok=True)
    jars, formatted = programs.jars_folder(), folder / "formatted"
    archive = folder / f"classes-{sha256(programs.words_of(java).encode()).hexdigest()[:12]}.jsa"  # of one Java only
    if not (jars.is_dir() and formatted.is_dir() and archive.is_file()):
        with locked(folder / "lock"):
            if not jars.is_dir():
                _fetch_jars(jars)
            if not formatted.is_dir():
                _format(java, jars, formatted)
            if not archive.is_file():
                _archive_classes(Kit(java, jars, formatted), archive)
    return Kit(java, jars, formatted, archive if archive.is_file() else None)


def _fetch_jars(jars: Path) -> None:
    maven = programs.maven()
    assert maven is not None, "ask what_brokers_lack() before"
    with draft_of(jars) as draft:
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={draft}"]
        _run([maven, "--batch-mode", "--quiet", "--file", str(programs.POM), *goal], draft, FETCH_S_MAX)
        draft.rename(jars)


def _format(java: str, jars: Path, formatted: Path) -> None:
    """Let Kafka format a folder. What differs between brokers is one text file; see :meth:`Kit.furnish`."""
    with draft_of(formatted) as draft, Guard() as guard, Ports() as ports:
        broker = Broker(draft, "the broker to be formatted", guard)
        broker.configure(properties_of(1, broker.data, reserve(ports, [1]), {}))
        main = ["kafka.tools.StorageTool", "format", "--cluster-id", identity(), "--config", str(broker.properties)]
        _run([*java_command(java, jars, broker), *main], draft, FORMAT_S_MAX)
        (broker.data / META).unlink()
        broker.data.rename(formatted)


def _archive_classes(kit: Kit, archive: Path) -> None:
    """Run a broker until it is up, and let its Java write the classes that it has loaded.

    Some builds of Java can't. Brokers start without an archive then.
    """
    with draft_of(archive) as draft, Guard() as guard, Ports() as ports:
        places = reserve(ports, [1])
        broker = Broker(draft, "the broker for the class archive", guard)
        kit.furnish(broker, identity(), properties_of(1, broker.data, places, {}))
        broker.start(kit.command(broker, archive_to=draft / archive.name))
        places[1].wait_until_up(broker)
        broker.end(signal.SIGTERM)
        with suppress(FileNotFoundError):
            (draft / archive.name).rename(archive)


def _run(command: list[str], folder: Path, seconds: float) -> None:
    """Run a program to its end; if this process is killed meanwhile, so is the program."""
    log = folder.with_name(f"{folder.name}.log")
    with Guard() as guard, log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0)
        guard.watch(process.pid)
        try:
            code: int | str = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = f"none after {seconds:.0f} s"
    process.wait()  # the guard has killed what still ran
    if code != 0:
        raise BrokerError(f"{' '.join(command)} ended with code {code}:\n{log.read_text(errors='replace')[-TAIL_BYTES:]}")
