"""Make the recording in README.md: ``python -m tests.recording``.

It runs a broker at the usual ports, in a temporary directory, and the commands of ``SCENES`` against it. What they write is
drawn into ``docs/images/demo.svg``. Run it again when a command's output has changed.
"""

import json
import shlex
import sys
import tempfile
from pathlib import Path

from tests.recording.picture import Scene, draw
from tests.recording.terminal import Shown, Terminal
from tests.support.cluster.cluster import environment

PICTURE = Path(__file__).parents[2] / "docs/images/demo.svg"
UP = "fila-cluster up"
MAILS = {"acme": 1000, "globex": 10, "initech": 10}
FILE = "mails.jsonl"
SCENES = {
    "another terminal: three tenants, and a provider that takes two mails a second": [
        "fila-cluster queue create emails",
        "fila-cluster throttle set provider --rate 2",
        f"# {FILE}: {MAILS['acme']:,} mails of acme, then 10 of globex and 10 of initech",
        f"fila-cluster enqueue emails --file {FILE}",
        """fila-cluster consume emails --count 4 | grep -o '"fairness_key": "[a-z]*"'""",
        "fila-cluster why emails",
    ],
    "a tour of two seconds": ["fila-cluster demo"],
}
"""The commands of each screen after the first one, which shows ``UP``."""


def main() -> None:
    """Run the commands, and draw them."""
    with tempfile.TemporaryDirectory(prefix="shop-") as directory:
        folder = Path(directory)
        terminal = Terminal(folder, _environment(folder))
        _write_mails(folder / FILE)
        with terminal.staying(UP, until="Ctrl-C") as up:
            scenes = [Scene("a terminal", [up])]
            for title, commands in SCENES.items():
                shown = [Shown(each, "", 0) if each.startswith("#") else terminal.run(each) for each in commands]
                scenes.append(Scene(title, shown))
    PICTURE.write_text(draw(scenes))
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1024:.0f} KiB")


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment in which ``fila-cluster`` is this checkout's, and nothing configures it."""
    programs = folder / "bin"
    programs.mkdir()
    command = programs / "fila-cluster"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fila_cluster "$@"\n')
    command.chmod(0o755)
    env = environment(TERM="xterm-256color")
    return env | {"PATH": f"{programs}:{env['PATH']}"}


def _write_mails(file: Path) -> None:
    mails = [(tenant, number) for tenant, count in MAILS.items() for number in range(count)]
    lines = (
        json.dumps({"payload": f"mail {number}", "fairness_key": tenant, "throttle_keys": ["provider"]})
        for tenant, number in mails
    )
    file.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
