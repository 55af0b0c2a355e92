"""Dramatiq's own tests: fetched from the package index when they run, and run in a pytest of their own.

``python -m tests.dramatiq.suite ENDPOINT [pytest's arguments]`` runs them against a cluster by hand.
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.upstream import sources

ROOT = Path(__file__).parents[2]
CONFTEST = "from tests.dramatiq.suite_fixtures import *  # noqa: F403\n"
NAMES = "from tests.dramatiq.suite_names import *  # noqa: F403\n"


class NotFetchedError(Exception):
    """The package index gave no source distribution."""


def fetch(folder: Path) -> Path:
    """Put the tests of the installed Dramatiq's source distribution into ``folder / "theirs"``."""
    try:
        unpacked = sources.fetch("dramatiq", folder)
    except subprocess.CalledProcessError as error:
        raise NotFetchedError("pip could not fetch the source distribution of the installed Dramatiq") from error
    theirs = folder / "theirs"
    (unpacked / "tests").rename(theirs)
    (theirs / "__init__.py").touch()
    (theirs / "conftest.py").write_text(CONFTEST)
    (theirs / "common.py").write_text(NAMES)
    return theirs


def run(theirs: Path, endpoint: str, *arguments: str) -> tuple[int, str, Path]:
    """Run them; return pytest's exit code, what it printed, and its report as JUnit's XML."""
    report = theirs.parent / "report.xml"
    settings = theirs.parent / "pytest.ini"
    settings.write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(settings),
        "--rootdir",
        str(theirs.parent),
        "-q",
        "-rfEs",
        "--timeout",
        "120",
    ]
    command += ["-p", "no:cacheprovider", f"--junit-xml={report}", *arguments]
    environment = os.environ | {"FILA_SUITE_ENDPOINT": endpoint, "dramatiq_restart_delay": "100"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    done = subprocess.run(command, cwd=theirs.parent, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr, report


def outcomes(report: Path) -> dict[str, dict[str, str]]:
    """The outcome of each test by file: ``passed``, ``failed``, or why it was skipped."""
    found: dict[str, dict[str, str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        skipped, failed = case.find("skipped"), case.find("failure")
        wrong = failed if failed is not None else case.find("error")
        outcome = "failed" if wrong is not None else "passed" if skipped is None else str(skipped.get("message"))
        file = str(case.get("classname")).rpartition(".")[2] + ".py"
        found.setdefault(file, {})[str(case.get("name"))] = outcome
    return found


def failed(found: dict[str, dict[str, str]]) -> list[tuple[str, str]]:
    """The tests that failed, each with its file."""
    return [(file, name) for file, tests in found.items() for name, outcome in tests.items() if outcome == "failed"]


def table(found: dict[str, dict[str, str]]) -> str:
    """The table of the docs: a line for each file."""
    lines = ["| file | pass | left out, and why |", "|---|---|---|"]
    for file, tests in sorted(found.items()):
        passed = sum(outcome == "passed" for outcome in tests.values())
        reasons: dict[str, int] = {}
        for outcome in tests.values():
            if outcome != "passed":
                reasons[outcome] = reasons.get(outcome, 0) + 1
        left_out = " · ".join(f"{count}: {reason}" for reason, count in sorted(reasons.items()))
        lines.append(f"| `{file}` | {passed} | {left_out} |")
    return "\n".join(lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        folder = fetch(Path(scratch))
        code, said, report = run(
            folder, sys.argv[1], *[str(folder / each) if each.startswith("test_") else each for each in sys.argv[2:]]
        )
        print(said)
        print(table(outcomes(report)))
        sys.exit(code)
