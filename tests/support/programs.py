"""Programs that tests run in processes of their own."""

import subprocess
import sys

HOLD = """
import os, signal, sys
from fila_cluster import Client

client = Client(sys.argv[1])
held = client.receive(sys.argv[2], wait=5)
assert held
os.kill(os.getpid(), signal.SIGKILL)
"""


def hold_and_die(endpoint: str, queue: str) -> None:
    """Receive a message of ``queue`` and be killed with it in hand."""
    subprocess.run([sys.executable, "-c", HOLD, endpoint, queue], check=False, timeout=20)
