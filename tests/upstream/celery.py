"""Run Celery's own integration tests, and kombu's tests of transports, over this broker with a real worker.

    python -m tests.upstream.celery            # all, some 20 minutes on two cores
    python -m tests.upstream.celery --short    # what CI runs: one of each kind
    python -m tests.upstream.celery -k chord   # options behind are pytest's

Fetches the source distributions of the installed versions, starts a cluster and a Redis server for results, and prints a table of what passed,
failed and was skipped. The exit code is 1 if a test failed that is not in ``KNOWN``.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.programs import free_port, output_of, required, started
from tests.support.cluster import Cluster, environment, running
from tests.upstream.sources import fetch

ROOT = Path(__file__).parents[2]

LEFT_OUT: Mapping[str, str] = {}
"""Modules that are not run, with the reason."""
KNOWN: Mapping[str, str] = {}
"""Tests that fail, with the reason: none of ours."""
SHORT = ()
"""The tests that CI runs."""
RUN_S_MAX = 3600


@dataclass
class Outcome:
    """What became of the tests of a module: counts by result, and the tests by result."""

    counts: Counter[str] = field(default_factory=Counter)
    tests: dict[str, str] = field(default_factory=dict)
    """The reasons of those that did not pass."""


@contextmanager
def redis(folder: Path) -> Iterator[int]:
    """A Redis server for results; yields its port."""
    program, port = required("redis-server", "redis-server"), free_port()
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder)]
    client = [required("redis-cli", "redis-tools"), "-p", str(port), "ping"]

    def answers() -> bool:
        try:
            return output_of(*client) == "PONG"
        except subprocess.CalledProcessError:
            return False

    with started(command, folder / "redis", answers):
        yield port


def run(package: str, target: str, options: list[str], cluster: Cluster, redis_port: int, folder: Path) -> dict[str, Outcome]:
    """Run tests of a package with a worker that uses the cluster; return what became of them, by module."""
    source = fetch(package, folder)
    report = folder / f"{package}.xml"
    command = [
        sys.executable, "-m", "pytest", "-p", "fila_cluster.celery", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--junit-xml", str(report),
        *(f"--deselect={name}" for name in KNOWN), *(f"--ignore={name}" for name in LEFT_OUT), target, *options,
    ]  # fmt: skip
    endpoint = cluster.endpoint.replace("tcp://", "fila://")
    paths = [str(source), *sys.path[:1], *(str(ROOT / each) for each in (".", "router", "worker", "proto_zmq"))]
    subprocess.run(
        command,
        cwd=source,
        env=environment(
            TEST_BROKER=endpoint,
            TEST_BACKEND=f"redis://127.0.0.1:{redis_port}/0",
            REDIS_HOST="127.0.0.1",
            REDIS_PORT=str(redis_port),
            PYTHONPATH=os.pathsep.join(paths),
            PYTHONDONTWRITEBYTECODE="1",
        ),
        timeout=RUN_S_MAX,
        check=False,
    )
    return outcomes(report)


def outcomes(report: Path) -> dict[str, Outcome]:
    """Read pytest's report."""
    found: dict[str, Outcome] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        module = case.get("classname", "").split(".test_")[1].split(".")[0]
        result, why = result_of(case)
        outcome = found.setdefault(f"test_{module}", Outcome())
        outcome.counts[result] += 1
        if result != "passed":
            outcome.tests[f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"] = f"{result}: {why}"
    return found


def result_of(case: ElementTree.Element) -> tuple[str, str]:
    """Return how a test ended, and why."""
    for result in ("failure", "error", "skipped"):
        element = case.find(result)
        if element is not None:
            kind = {"failure": "failed", "error": "failed"}.get(result, result)
            if element.get("type") == "pytest.xfail":
                kind = "expected to fail"
            return kind, (element.get("message") or "").splitlines()[0][:160] if element.get("message") else ""
    return "passed", ""


def table(found: Mapping[str, Outcome]) -> str:
    """Return the results in Markdown."""
    kinds = ["passed", "skipped", "expected to fail", "failed"]
    lines = [f"| module | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
    lines += [
        f"| `{name}` | {' | '.join(str(outcome.counts[kind]) for kind in kinds)} |" for name, outcome in sorted(found.items())
    ]
    return "\n".join(lines)


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="only what CI runs")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "fila-upstream", help="where sources are kept"
    )
    arguments, options = parser.parse_known_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    targets = list(SHORT) if arguments.short else []
    with tempfile.TemporaryDirectory() as data, redis(Path(data)) as port, running(Path(data) / "fila", workers=2) as cluster:
        found = run("celery", targets[0], [*targets[1:], *options], cluster, port, arguments.folder)
    print(table(found))
    for outcome in found.values():
        for name, why in outcome.tests.items():
            print(f"{name}: {why}")
    return any(outcome.counts["failed"] for outcome in found.values())


if __name__ == "__main__":
    sys.exit(main())
