"""The types of the clients in other languages, made from the OpenAPI text. ``python -m tests.integration.clients.generated`` writes them."""

import json
import subprocess
import tempfile
from pathlib import Path

from fila_cluster.ops.observer.http_api.openapi import document
from tests.architecture.sources import ROOT
from tests.support.machine import GO_GENERATOR, NODE

CLIENTS = ROOT / "clients"
TYPESCRIPT = CLIENTS / "typescript"
GO_CLIENT = CLIENTS / "go"


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


GENERATOR = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2"
GO_SCHEMAS = ("DeliveryBody", "ErrorBody", "Message", "Scale")
"""Those of which Go's client has types. The others are small, or are unions, for which generated types need a library."""
GO_OPTIONS = """
package: fila
generate: {models: true}
compatibility: {always-prefix-enum-values: true}
output-options: {name-normalizer: ToCamelCaseWithInitialisms, skip-prune: true, prefer-skip-optional-pointer: true}
"""


def go_types() -> str:
    """The text of ``types.gen.go``."""
    found = document()
    schemas = {name: found["components"]["schemas"][name] for name in GO_SCHEMAS}
    for schema in schemas.values():
        for field in schema["properties"].values():
            for kind in (field, *field.get("anyOf", ())):
                if kind.get("type") == "number":
                    kind["format"] = "double"  # the generator's default is float32
                if "enum" in kind:
                    kind["type"] = "string"
    schemas["Message"]["properties"]["cost"]["x-go-type-skip-optional-pointer"] = False  # 0 is not its default
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "openapi.json").write_text(json.dumps({**found, "paths": {}, "components": {"schemas": schemas}}))
        Path(folder, "options.yaml").write_text(GO_OPTIONS)
        return run("go", "run", GENERATOR, "-config", "options.yaml", "openapi.json", cwd=Path(folder))


FILES = {
    TYPESCRIPT / "src/door.ts": (NODE, typescript_types),
    GO_CLIENT / "types.gen.go": (GO_GENERATOR, go_types),
}
"""Each file with what it needs of the machine, and what makes its text."""

if __name__ == "__main__":
    for file, (need, text) in FILES.items():
        if (problem := need.lacks()) is not None:
            raise SystemExit(problem)
        if need is NODE:
            install()
        file.write_text(text())
