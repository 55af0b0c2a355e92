"""What Celery and kombu expect of a broker: some of their own tests, see ``docs/celery.md``. All of them take half an hour."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machine import PEERS, require
from tests.upstream.celery import SHORT

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[3]
RUN_S_MAX = 900


@pytest.mark.timeout(RUN_S_MAX + 60)
def test_some_of_their_own_tests_pass(tmp_path_factory: pytest.TempPathFactory) -> None:
    require(PEERS["Redis"])
    folder = tmp_path_factory.mktemp("upstream")
    done = subprocess.run(
        [sys.executable, "-m", "tests.upstream.celery", "--short", "--folder", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=RUN_S_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    passed = {module: int(count) for module, count in re.findall(r"^\| `(\w+)` \| (\d+) \|", done.stdout, re.MULTILINE)}
    assert passed.keys() == SHORT.keys()
    assert all(passed.values()), done.stdout
