"""Whether this machine has the Java that Spark's tests need.

Without one they are skipped, with the reason below; with ``FILA_REQUIRE_JAVA=1`` in the environment they fail instead, so
that a machine that is meant to run everything can't pass by skipping. ``python -m tests.support.java`` says what is
missing, and exits with 1 if something is.
"""

import os
import sys
from collections.abc import Iterable
from functools import cache

import pytest

from fila_cluster.cli.spark.requirements import what_java_lacks

java_problem = cache(what_java_lacks)
"""One line that says how to get a Java, or None if there is one; asked once."""


def skip_without_java(items: Iterable[pytest.Item]) -> None:
    """Mark tests that can't run here, unless they have to."""
    problem = None if _is_required() else java_problem()
    if problem is not None:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=problem))


def require_java() -> None:
    """Fail the test that asks, if there has to be a Java and is none."""
    problem = java_problem()
    if problem is not None and _is_required():
        pytest.fail(f"FILA_REQUIRE_JAVA is set: {problem}", pytrace=False)


def _is_required() -> bool:
    return os.environ.get("FILA_REQUIRE_JAVA", "0") not in {"", "0"}


if __name__ == "__main__":
    problem = java_problem()
    if problem is not None:
        print(f"without Java the Spark tests are skipped. {problem}", file=sys.stderr)
    sys.exit(problem is not None)
