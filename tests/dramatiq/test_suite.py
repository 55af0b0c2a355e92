"""Dramatiq's own tests pass with our broker in place of its brokers, and the docs say which."""

from pathlib import Path

import pytest

from tests.dramatiq import suite
from tests.dramatiq.left_out import LEFT_OUT
from tests.support.cluster.cluster import Cluster
from tests.support.machine import leave_out

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_dramatiqs_own_tests_pass(shared_cluster: Cluster, tmp_path: Path) -> None:
    try:
        theirs = suite.fetch(tmp_path)
    except suite.NotFetchedError as error:
        leave_out(str(error), str(error))
    _, said, report = suite.run(theirs, shared_cluster.endpoint, "-n", "4", str(theirs))
    found = suite.outcomes(report)
    assert found, said
    for file, name in suite.failed(found):  # some of them judge times, which many at once spoil
        code, said, report = suite.run(theirs, shared_cluster.endpoint, f"{theirs / file}::{name}")
        assert code == 0, said
        found[file][name] = suite.outcomes(report)[file][name]
    assert suite.table(found) in (ROOT / "docs/dramatiq.md").read_text()
    named = {file: set(tests) for file, tests in LEFT_OUT.items() if isinstance(tests, dict)}
    assert {file: tests - found[file].keys() for file, tests in named.items() if tests - found[file].keys()} == {}
