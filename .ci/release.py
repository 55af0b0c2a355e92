"""Check what is about to be published, and leave it in ``dist/``: ``make release-check``.

The last commit is built into a wheel and an sdist. Both are installed in clean environments, the wheel also with each extra
alone, and tried. ``dist/about`` gets a bill of materials (SBOM, CycloneDX) of each environment, and ``licences.json``. The tools
are those of the dependency group ``release``.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from environments import ROOT, cloned, each_extra, run, said

DIST: Final = ROOT / "dist"
ABOUT: Final = DIST / "about"
WHEEL_BYTES_MAX: Final = 3 * 1024**2
IMPORT_MS_MAX: Final = 150.0
"""How long ``from fila_cluster import Client`` may take."""
IMPORTS: Final = 10
"""The quickest of so many counts: others use the machine, too."""
IMPORT_CLIENT: Final = """
import time
began = time.perf_counter()
from fila_cluster import Client
print(1000 * (time.perf_counter() - began))
"""
ACCEPTED: Final = re.compile(
    r"\b(?:MIT|0?BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla|LGPL|Lesser General|Unlicense|Public Domain|CC0|HPND|ZPL|Zope"
    r"|zlib)",
    re.IGNORECASE,
)
"""Licences of libraries that people may use in a closed product, unchanged."""
OURS: Final = {"fila-cluster", "pip", "setuptools"}
"""What is no dependency: this package, and what an environment comes with."""


def is_accepted(licence: str) -> bool:
    """Return whether each part of a licence that must be kept has an alternative that is accepted."""
    return all(map(ACCEPTED.search, re.split(r"\bAND\b", licence)))


def built(folder: Path) -> tuple[Path, Path]:
    """Build the last commit; return the wheel and the sdist in ``DIST``. The wheel is built from the sdist."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", str(DIST), str(cloned(folder)), cwd=folder)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return wheel, sdist


def check_size(wheel: Path) -> str:
    """Fail if the wheel is too large; return its size."""
    size = wheel.stat().st_size
    if size > WHEEL_BYTES_MAX:
        raise SystemExit(
            f"{wheel.name} has {size:,} bytes, and {WHEEL_BYTES_MAX:,} are allowed: leave files out of the build"
        )
    return f"{size / 1024:,.0f} KiB of {WHEEL_BYTES_MAX / 1024:,.0f} KiB"


def smoke(extra: str, python: Path) -> None:
    """Use what is installed: a broker in a process; with the dashboard a whole cluster."""
    command = str(python.with_name("fila-cluster"))
    run(command, "--version", cwd=python.parent)
    if extra == "base":
        run(command, "--json", "demo", cwd=python.parent)
    if extra == "dashboard":
        run(command, "--json", "demo", "--web", "--for", "3s", cwd=python.parent)


def describe(extra: str, python: Path) -> dict[str, str]:
    """Write the bill of materials of an environment; return the licences of what is in it, by package and version."""
    bill = ABOUT / f"{extra}.cdx.json"
    tool = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", str(ROOT / "pyproject.toml")]
    run(*tool, "--output-reproducible", "--output-file", str(bill), str(python), cwd=ROOT)
    listing = [sys.executable, "-m", "piplicenses", "--python", str(python), "--format", "json", "--from", "mixed"]
    found = json.loads(subprocess.run(listing, capture_output=True, check=True, text=True).stdout)
    return {f"{each['Name']} {each['Version']}": each["License"] for each in found if each["Name"] not in OURS}


def check_licences(licences: dict[str, str]) -> str:
    """Write the licences down; fail if one is not accepted."""
    (ABOUT / "licences.json").write_text(json.dumps(dict(sorted(licences.items())), indent=2) + "\n")
    if refused := [f"{package}: {licence}" for package, licence in licences.items() if not is_accepted(licence)]:
        raise SystemExit(f"licences that ACCEPTED in {Path(__file__).name} does not name: {'; '.join(sorted(refused))}")
    return f"{len(licences)} packages"


def import_ms(python: Path) -> float:
    """Return how long the client's import takes, in milliseconds."""
    command = [str(python), "-I", "-c", IMPORT_CLIENT]
    runs = [subprocess.run(command, capture_output=True, check=True, text=True).stdout for _ in range(IMPORTS)]
    return min(map(float, runs))


def main() -> None:
    """Check everything, and say what was found."""
    os.environ.pop("PYTHONPATH", None)  # only what is installed counts
    licences: dict[str, str] = {}

    def installed(extra: str, python: Path) -> None:
        smoke(extra, python)
        licences.update(describe(extra, python))

    with tempfile.TemporaryDirectory(prefix="fila-") as name:
        folder = Path(name)
        said("build")
        wheel, sdist = built(folder)
        ABOUT.mkdir()
        run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist), cwd=folder)
        size = check_size(wheel)
        said("the wheel, with each extra alone")
        each_extra(folder, str(wheel), installed)
        said("the sdist")
        run(sys.executable, "-m", "venv", "sdist", cwd=folder)
        python = folder / "sdist" / "bin" / "python"
        run(str(python), "-m", "pip", "install", "--quiet", str(sdist), cwd=folder)
        smoke("base", python)
        took_ms = import_ms(python)
    said("found")
    print(
        f"wheel: {size}\nlicences: {check_licences(licences)}\nimport of the client: {took_ms:.0f} ms of {IMPORT_MS_MAX:.0f} ms"
    )
    if took_ms > IMPORT_MS_MAX:
        raise SystemExit("the import of the client is too slow: python -X importtime -c 'from fila_cluster import Client'")
    print(f"{DIST} may be published")


if __name__ == "__main__":
    main()
