"""Run Celery's own integration tests, and kombu's tests of transports, over this broker with a real worker.

    python -m tests.upstream.celery                         # all, about half an hour on two cores
    python -m tests.upstream.celery --short                 # what CI runs
    python -m tests.upstream.celery test_canvas -k chord    # some modules; options behind are pytest's

Fetches the source distributions of the installed versions, starts a cluster of two workers and a Redis server for results, and prints what passed,
what failed and what was left out. Each module runs in a process and a namespace of its own. The exit code is 1 if a test failed that is
not in ``KNOWN``.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.peers.programs import free_port, output_of, required, started
from tests.support.cluster.cluster import Cluster, environment, running
from tests.upstream.sources import fetch

ROOT = Path(__file__).parents[2]
KOMBU = "kombu_transport"
"""Our module that puts this transport into kombu's tests."""
HOST = "127.0.0.1"

LEFT_OUT: Mapping[str, str] = {
    "test_backend": "needs Azure",
    "test_security": "needs the package cryptography, and signs messages whatever the broker is",
}
"""Modules that are not run, with the reason."""
KNOWN: Mapping[str, str] = {
    "test_tasks::test_tasks::test_revoked_by_headers_complex_canvas": "it allows 20 s for what sleeps longer; the same on Redis",
    "test_tasks::test_task_replacement::test_replaced_task_nesting_level_0": (
        "it resets after it has sent the task what the worker may have set by then; the same on Redis"
    ),
    "test_inspect::test_Inspect::test_scheduled": "it expects the worker to hold a task with an ETA; here the broker holds it",
}
"""Tests that are left out, with the reason. What they expect is another way to the same end."""
SHORT: Mapping[str, str] = {
    KOMBU: "exchange_types or test_message or event_loop",
    "test_tasks": "test_basic_task or test_reject_without_requeue or test_eta",
}
"""What CI runs: modules, and which of their tests (``-k``)."""
RUN_S_MAX = 1800
"""Of a module."""


@dataclass
class Outcome:
    """What became of the tests of a module: counts by result, and the reasons of those that did not pass."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)


@contextmanager
def redis(folder: Path) -> Iterator[int]:
    """A Redis server for results; yields its port."""
    program, client, port = required("redis-server", "redis-server"), required("redis-cli", "redis-tools"), free_port()
    command = [program, "--bind", HOST, "--port", str(port), "--save", "", "--dir", str(folder)]

    def answers() -> bool:
        try:
            return output_of(client, "-p", str(port), "ping") == "PONG"
        except subprocess.CalledProcessError:
            return False

    with started(command, folder / "redis", answers):
        yield port


def modules_of(source: Path) -> list[str]:
    """Return the names of Celery's modules, in the order in which Celery runs them."""
    return sorted(path.stem for path in (source / "t" / "integration").glob("test_*.py"))


def run(module: str, options: Sequence[str], cluster: Cluster, redis_port: int, folder: Path) -> Outcome:
    """Run a module with a worker that uses the cluster."""
    source = fetch("kombu" if module == KOMBU else "celery", folder)
    path = ROOT / f"tests/upstream/{KOMBU}.py" if module == KOMBU else source / f"t/integration/{module}.py"
    report = folder / f"{module}.xml"
    report.unlink(missing_ok=True)
    known = [name for name in KNOWN if name.startswith(f"{module}::")]
    command = [
        sys.executable, "-m", "pytest", "-p", "celery.contrib.pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-q",
        "-c", str(source / ("pyproject.toml" if module != KOMBU else "setup.cfg")), "-o", "python_classes=test_*", "-o", "addopts=",
        "--rootdir", str(source), "--junit-xml", str(report), str(path), *options,
        *(f"--deselect={os.path.relpath(path, source)}::{name.partition('::')[2]}" for name in known),
    ]  # fmt: skip
    paths = (ROOT / "tests/upstream/site", source, *(ROOT / each for each in (".", "router", "worker", "proto_zmq")))
    namespace = "" if module == KOMBU else f"/{module}"  # kombu's tests have one for each
    env = environment(
        TEST_BROKER=cluster.endpoint.replace("tcp://", "fila://") + namespace,
        TEST_BACKEND=f"redis://{HOST}:{redis_port}/0",
        REDIS_HOST=HOST,
        REDIS_PORT=str(redis_port),
        WORKER_LOGLEVEL="INFO",  # some tests read the log
        PYTHONPATH=os.pathsep.join(map(str, paths)),
        PATH=os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        ),  # one test runs "celery"
    )
    subprocess.run(command, cwd=source, env=env, timeout=RUN_S_MAX, check=False)
    outcome = outcome_of(report)
    for name in known:
        outcome.counts["skipped"] += 1
        outcome.reasons[name] = f"skipped: {KNOWN[name]}"
    return outcome


def outcome_of(report: Path) -> Outcome:
    """Read pytest's report. Without one, pytest itself has failed."""
    outcome = Outcome()
    if not report.exists():
        outcome.counts["failed"] += 1
        outcome.reasons[report.stem] = "failed: pytest has written no report"
        return outcome
    for case in ElementTree.parse(report).iter("testcase"):
        result, why = result_of(case)
        outcome.counts[result] += 1
        if result != "passed":
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            outcome.reasons[f"{report.stem}::{name}"] = f"{result}: {why}"
    return outcome


def result_of(case: ElementTree.Element) -> tuple[str, str]:
    """Return how a test ended, and why."""
    for kind, result in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        element = case.find(kind)
        if element is not None:
            return result, (element.get("message") or "no reason").splitlines()[0][:160]
    return "passed", ""


def table(found: Mapping[str, Outcome]) -> str:
    """Return the results in Markdown."""
    kinds = ("passed", "skipped", "failed")
    rows = [f"| `{name}` | {' | '.join(str(outcome.counts[kind]) for kind in kinds)} |" for name, outcome in found.items()]
    return "\n".join([f"| module | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}", *rows])


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(prog="python -m tests.upstream.celery", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", help=f"only these, as test_tasks; {KOMBU} for kombu's")
    parser.add_argument("--short", action="store_true", help="only what CI runs")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "fila-upstream", help="where sources are kept"
    )
    arguments, options = parser.parse_known_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    names = arguments.modules or (SHORT if arguments.short else [KOMBU, *modules_of(fetch("celery", arguments.folder))])
    found: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as data, redis(Path(data)) as port, running(Path(data) / "fila", workers=2) as cluster:
        for name in names:
            if name in LEFT_OUT:
                found[name] = Outcome(Counter(skipped=1), {name: f"skipped: {LEFT_OUT[name]}"})
            else:
                chosen = ["-k", SHORT[name]] if arguments.short else []
                found[name] = run(name, [*chosen, *options], cluster, port, arguments.folder)
    print(table(found))
    for outcome in found.values():
        for name, why in outcome.reasons.items():
            print(f"{name}: {why}")
    return int(any(outcome.counts["failed"] for outcome in found.values()))


if __name__ == "__main__":
    sys.exit(main())
