"""Try the project in environments that have less than a developer's.

    python .ci/environments.py newcomer      in a fresh clone, with nothing on the PATH but a shell, make and Python: make unit, up, test
    python .ci/environments.py interpreters  make unit in a fresh clone with each later version of Python

What is tried is the last commit: the clone has no other files. Needs Python 3.11 or later, git and make.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
TOOLS: Final = (
    "sh", "bash", "env", "make", "git", "cat", "cp", "date", "dirname", "find", "grep", "head", "hostname", "kill", "ln", "ls", "mkdir", "mv",
    "ps", "pwd", "rm", "sed", "sleep", "sort", "tail", "test", "touch", "tr", "true", "uname", "which",
)  # fmt: skip
"""What a machine has on which somebody tries a Python project. No Java, Maven, browser, C compiler, terminal multiplexer or broker."""
LATER: Final = ("3.12", "3.13")
"""The versions of Python beside the oldest one, with which everything else runs."""
UP_S_MAX: Final = 60.0


def said(what: str) -> None:
    """Print a heading into the log of CI."""
    print(f"\n== {what}", flush=True)


def run(*command: str, cwd: Path, path: str | None = None) -> None:
    """Run a command; fail if it fails. ``path``: its ``PATH``, with no other setting that names a program."""
    environment = dict(os.environ)
    if path is not None:
        environment = {name: value for name, value in environment.items() if name not in {"JAVA_HOME", "VIRTUAL_ENV"}}
        environment["PATH"] = path
    print("$", *(word for word in command if "\n" not in word), flush=True)
    subprocess.run(command, cwd=cwd, env=environment, check=True)


def cloned(folder: Path) -> Path:
    """Return a fresh clone of the last commit."""
    run("git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(folder / "clone"), cwd=folder)
    return folder / "clone"


def bare(folder: Path) -> str:
    """Return a ``PATH`` of one folder that has ``TOOLS`` and Python."""
    python = sys.executable if sys.prefix == sys.base_prefix else str(Path(sys.base_prefix) / "bin" / "python3")
    programs = folder / "bin"
    programs.mkdir()
    for name in TOOLS:
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    (programs / "python3").symlink_to(python)
    return str(programs)


@contextmanager
def up(clone: Path, path: str) -> Iterator[str]:
    """Start a cluster as the README says, on free ports, and stop it afterwards. Gives its line ``ready: …``."""
    arguments = "ARGS=--listen 127.0.0.1:0 --dashboard 127.0.0.1:0"
    print("$ make up", arguments, flush=True)
    process = subprocess.Popen(
        ["make", "up", arguments],
        cwd=clone,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        ready = next((line for line in lines if line.startswith("ready: ")), "")
        print(ready, end="", flush=True)
        if not ready:
            raise SystemExit("make up: the cluster never served")
        yield ready
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(UP_S_MAX)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def newcomer(folder: Path) -> None:
    """Try what the README and ``make help`` name first."""
    path = bare(folder)
    clone = cloned(folder)
    run("make", "unit", cwd=clone, path=path)
    with up(clone, path):
        pass
    run("make", "test", cwd=clone, path=path)


def interpreters(folder: Path) -> None:
    """Run the quick tests with the later versions of Python. That one of them is missing is an error."""
    for version in LATER:
        python = found_python(version)
        said(f"make unit with {python}")
        (folder / version).mkdir()
        run("make", "unit", f"PYTHON={python}", cwd=cloned(folder / version))


def found_python(version: str) -> str:
    """Return the path of this version: of the ``PATH``, else of pyenv."""
    places = [
        shutil.which(f"python{version}"),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")),
    ]
    for place in filter(None, places):
        if subprocess.run([place, "-c", ""], capture_output=True, check=False).returncode == 0:
            return place
    raise SystemExit(f"there is no Python {version}: install it, or take it out of LATER in {Path(__file__).name}")


def main() -> None:
    """Try what the arguments name."""
    tried = {"newcomer": newcomer, "interpreters": interpreters}
    names = sys.argv[1:] or list(tried)
    if unknown := [name for name in names if name not in tried]:
        raise SystemExit(f"{unknown[0]} is none of {', '.join(tried)}")
    for name in names:
        said(name)
        with tempfile.TemporaryDirectory(prefix="fila-") as folder:
            tried[name](Path(folder))


if __name__ == "__main__":
    main()
