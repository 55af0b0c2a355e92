"""A payload or a header on the command line that is no UTF-8 does not end in a traceback.

Source: pika/pika issue 282, pika/pika issue 333
Right: the payload is the bytes that were typed; where text is needed, one line says so
Result: mended
"""

import os
import subprocess

import pytest

from fila_cluster import Client
from tests.support.cluster.cluster import PATIENCE_S, command, environment

BYTES = b"\xff\xfe\xc3 \xc3\xb6"
TYPED = os.fsdecode(BYTES)
HOOK = "function on_enqueue(msg) return { fairness_key = msg.headers.a } end"


def fila(*arguments: str, **env: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(command(*arguments), capture_output=True, timeout=PATIENCE_S, check=False, env=environment(**env))


def test_a_payload_is_what_was_typed(client: Client, queue: str) -> None:
    for env in ({}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        done = fila("--endpoint", client.endpoint, "enqueue", queue, TYPED, **env)
        assert done.returncode == 0, done.stderr
    name = f"{queue}-hourly"
    done = fila("--endpoint", client.endpoint, "schedule", "put", name, queue, TYPED, "--every", "1h")
    assert done.returncode == 0, done.stderr
    schedule = client.get_schedule(name)
    client.delete_schedule(name)
    assert schedule is not None
    assert schedule.message is not None
    assert [view.payload for view in client.browse(queue)] == [schedule.message.payload] * 2 == [BYTES] * 2


@pytest.mark.parametrize("arguments", [("hook", "test", HOOK, "--header", f"a={TYPED}"), ("hook", "test", TYPED)])
def test_text_is_asked_for_in_one_line(arguments: tuple[str, ...]) -> None:
    done = fila(*arguments)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert b"UTF-8" in done.stderr
