"""The blocks of the pages on testing and on the embedded broker run, and their example goes on where it was killed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fila_cluster.testing.kit  # before pytest runs within pytest, which forgets what it imports
from tests.examples.test_programs import ACCESS_LOG, ROOT, output_of
from tests.support.kit import PLUGIN

pytest_plugins = "pytester"
assert fila_cluster.testing.kit

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOOL = ROOT / "examples/embedded_tool.py"


def blocks_of(page: str) -> list[str]:
    return BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))


def test_the_tests_on_the_page_pass(pytester: pytest.Pytester) -> None:
    source = "\n\n".join(blocks_of("testing.md"))
    pytester.makepyfile(test_page=source)
    result = pytester.runpytest_inprocess(*PLUGIN, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=len(re.findall(r"^def test_", source, re.MULTILINE)))


def test_the_embedded_broker_does_what_its_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    known: dict[str, object] = {}
    for block in blocks_of("embedded.md"):
        exec(compile(block, "embedded.md", "exec"), known)
    printed = capsys.readouterr().out
    assert printed.startswith("to ana@example.org\n")
    assert "is open in this process as memory://embedded-" in printed


STOPPED = """
import os, sys
sys.path.insert(0, {folder!r})
import embedded_tool as tool

acks = []
def ack(client, deliveries, real=tool.Client.ack):
    if len(acks) == 3:
        os.kill(os.getpid(), 9)
    acks.append(real(client, deliveries))

tool.Client.ack = ack
tool.main({log!r}, {directory!r})
"""


def test_the_tool_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    code = STOPPED.format(folder=str(TOOL.parent), log=str(ACCESS_LOG), directory=str(tmp_path / "q"))
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -9, killed.stderr
    second = output_of(TOOL, ACCESS_LOG, tmp_path / "q").splitlines()
    assert second[:2] == ["going on with 8,500 lines", "0 lines taken in"]
    assert sum(int(count.replace(",", "")) for count in re.findall(r": ([\d,]+)", second[2])) == 8500
