"""The supervisor's loop with parts that do little: what ends a start, and what does not."""

import os
import subprocess
import sys
from pathlib import Path

PARTS = {
    "stays": "import sys; sys.stdin.readline(); sys.stdin.read()",
    "is_deposed_twice": """
import os, sys
from pathlib import Path
from fila_process.parent import DEPOSED
with Path("lives").open("a") as lives:
    lives.write(".")
if Path("lives").stat().st_size < 3:
    os._exit(DEPOSED)
sys.stdin.readline()
sys.stdin.read()
""",
    "finds_its_name_taken": """
import os
from pathlib import Path
from fila_process.parent import DEPOSED, UNFIT
with Path("lives").open("a") as lives:
    lives.write(".")
os._exit(DEPOSED if Path("lives").stat().st_size < 2 else UNFIT)
""",
    "fails": "raise SystemExit(1)",
}

SCRIPT = """
import os, signal, sys
from pathlib import Path
from fila_cluster.run.supervisor.child import Child
from fila_cluster.run.supervisor.supervisor import Supervisor
from fila_process.journal import Journal
from fila_proto_zmq.events import LogSettings

class Readiness:
    def check(self, now):
        return worker.starts == 3
    def close(self):
        pass

lock = os.open("lock", os.O_CREAT)
router, worker = (Child(name, name, b"\\n", Path.cwd(), lock) for name in ("stays", sys.argv[1]))
stop = lambda: (print("ready", flush=True), os.kill(os.getpid(), signal.SIGTERM))
sys.exit(Supervisor(router, [worker], [], Readiness(), stop, Journal("supervisor", LogSettings())).run())
"""


def run(tmp_path: Path, worker: str) -> tuple[int, str, str]:
    for name, text in PARTS.items():
        (tmp_path / f"{name}.py").write_text(text)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, worker], cwd=tmp_path, env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stdout, ended.stderr


def test_a_worker_that_is_deposed_during_its_first_start_begins_again_at_once(tmp_path: Path):
    code, said, log = run(tmp_path, "is_deposed_twice")
    assert (code, said) == (0, "ready\n"), log
    assert log.count('"exit": "was deposed: another host leads a shard that it led"') == 2
    assert log.count('"restart_ms": 0') == 2


def test_a_worker_whose_first_start_fails_ends_the_start(tmp_path: Path):
    assert run(tmp_path, "fails")[:2] == (1, "")


def test_a_worker_whose_name_another_host_has_ends_the_host_whenever_it_finds_out(tmp_path: Path):
    assert run(tmp_path, "finds_its_name_taken")[:2] == (1, "")
    assert (tmp_path / "lives").read_text() == ".."
