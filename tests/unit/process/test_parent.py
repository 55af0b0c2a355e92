"""The end of a process, which no signal may disturb."""

import signal
import subprocess
import sys

import pytest

LATE = """
import os, signal, sys
from fila_process.parent import StopRequests

def serve():
    stop = StopRequests(0)
    if {closed}:
        stop.close()

serve()
signal.raise_signal(signal.Signals({number}))
"""
"""A signal that comes when the descriptor that it would wake is closed."""


def late(number: signal.Signals, *, closed: bool) -> subprocess.CompletedProcess[str]:
    code = LATE.format(closed=closed, number=int(number))
    return subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGCHLD])
def test_a_late_signal_changes_neither_the_exit_code_nor_the_output(number: signal.Signals):
    done = late(number, closed=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_signal_before_the_end_finds_its_descriptor_closed():
    assert "wakeup fd" in late(signal.SIGTERM, closed=False).stderr, "or this test proves nothing"
