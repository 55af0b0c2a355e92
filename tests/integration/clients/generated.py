"""The types of the clients in other languages, made from the OpenAPI text. ``python -m tests.integration.clients.generated`` writes them."""

import json
import subprocess
import tempfile
from pathlib import Path

from fila_cluster.ops.observer.http_api.openapi import document
from tests.architecture.sources import ROOT
from tests.support.machine import NODE

CLIENTS = ROOT / "clients"
TYPESCRIPT = CLIENTS / "typescript"


def run(*command: str | Path, cwd: Path, stdin: str = "") -> str:
    """What a program prints. It must succeed."""
    done = subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def install() -> None:
    """Fetch the compiler of TypeScript and the generator of its types, unless they are there."""
    installed = TYPESCRIPT / "node_modules/.package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < (TYPESCRIPT / "package-lock.json").stat().st_mtime:
        run("npm", "ci", "--no-audit", "--no-fund", cwd=TYPESCRIPT)
        installed.touch()


def typescript_types() -> str:
    """The text of ``door.ts``."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "openapi.json")
        source.write_text(json.dumps(document()))
        generator = TYPESCRIPT / "node_modules/.bin/openapi-typescript"
        # A field with a default may be left out of a request, which is where all such fields are.
        run(generator, source, "--default-non-nullable=false", "--output", Path(folder, "door.ts"), cwd=TYPESCRIPT)
        return Path(folder, "door.ts").read_text()


FILES = {TYPESCRIPT / "src/door.ts": (NODE, typescript_types)}
"""Each file with what it needs of the machine, and what makes its text."""

if __name__ == "__main__":
    for file, (need, text) in FILES.items():
        if (problem := need.lacks()) is not None:
            raise SystemExit(problem)
        if need is NODE:
            install()
        file.write_text(text())
