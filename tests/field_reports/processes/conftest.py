"""Programs of these scenarios, in processes of their own."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.cluster.cluster import PATIENCE_S, Cluster, environment

Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def program(shared_cluster: Cluster, queue: str) -> Program:
    """Return a function that runs a program with the endpoint and the queue as arguments, and waits for its end."""

    def run(text: str, *options: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *options, "-c", text, shared_cluster.endpoint, queue]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment())

    return run
