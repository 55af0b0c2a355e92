"""Check what is about to be published, and leave it in ``dist/``: ``make release-check``.

The last commit is built into a wheel and an sdist. The wheel is installed in clean environments, without extras and with each of them
alone, then the sdist; all modules of each are imported, and used. ``dist/about`` gets a bill of materials (SBOM, CycloneDX) of each
environment, and ``licences.json``. The tools are those of the dependency group ``release``.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final

from environments import ROOT, cloned, run, said

PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DIST: Final = ROOT / "dist"
ABOUT: Final = DIST / "about"
WHEEL_BYTES_MAX: Final = 3 * 1024**2
IMPORT_MS_MAX: Final = 150.0
"""How much time of the processor ``from fila_cluster import Client`` may take."""
IMPORTS: Final = 5
"""In each environment; the quickest of all counts, which are minutes apart: others use the machine, too."""
IMPORT_CLIENT: Final = """
import time
began = time.process_time()
from fila_cluster import Client
print(1000 * (time.process_time() - began))
"""
ACCEPTED: Final = re.compile(
    r"\b(?:MIT|0?BSD|Apache|ISC|PSF|Python Software Foundation|Unlicense|Public Domain|CC0|HPND|ZPL|Zope|zlib"
    r"|MPL|Mozilla|LGPL|Lesser General)",
    re.IGNORECASE,
)
"""Licences of libraries that people may use in a closed product, unchanged. The first line asks only to be named. What the second line
asks ends at the library's own files (MPL) or the library (LGPL, of ``psycopg``), which nobody changes here."""
WITHOUT_WHEEL: Final = ("pyspark",)
"""Published as an sdist only: it is Python alone, so its installation compiles nothing."""
EXTRAS: Final = {
    "backup": ("fila_cluster.run.backup",),
    "celery": ("fila_cluster.celery",),
    "dashboard": ("fila_cluster.ops.dashboard",),
    "django": ("fila_cluster.django",),
    "dramatiq": ("fila_cluster.dramatiq",),
    "hosts": ("fila_worker.log",),
    "locust": ("locust",),
    "outbox": ("fila_cluster.outbox",),
    "peers": ("redis", "nats", "pika", "hiredis"),
    "reload": ("fila_cluster.run.work",),
    "site": ("furo", "myst_parser"),
    "spark": ("fila_cluster.spark",),
    "testing": ("fila_cluster.testing",),
}
"""The packages that each extra is for. All their modules are imported."""
BASE: Final = (
    "fila_cluster.cli",
    "fila_cluster.client",
    "fila_cluster.app",
    "fila_cluster.embedded",
    "fila_router",
    "fila_worker.core",
)
"""The packages that need no extra."""
IMPORT_ALL: Final = """
import importlib, pkgutil, sys
if "fila_cluster.django" in sys.argv:
    import django.conf
    django.conf.settings.configure(INSTALLED_APPS=[f"django.contrib.{app}" for app in ("admin", "auth", "contenttypes")] + ["fila_cluster.django"])
    django.setup()
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", ()), name + "."):
        if name.startswith("fila") and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


SETTINGS: Final = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_CERT": "SSL_CERT_FILE",
    "PIP_DEFAULT_TIMEOUT": "UV_HTTP_TIMEOUT",
}
"""What pip is set to in the environment, and the names of uv for that."""


def is_accepted(licence: str) -> bool:
    """Return whether each part of a licence that must be kept has an alternative that is accepted."""
    return all(map(ACCEPTED.search, re.split(r"\bAND\b", licence)))


def uv(*arguments: str) -> None:
    """Run ``uv``: it installs as pip does, and keeps what it had before, so an environment takes seconds."""
    run(sys.executable, "-m", "uv", "--quiet", *arguments, cwd=ROOT)


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


def check_wheels() -> str:
    """Fail if a dependency has no wheel for a Python that the classifiers name; return these versions."""
    versions = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    without = [argument for package in WITHOUT_WHEEL for argument in ("--no-binary", package)]
    for version in versions:
        wheels = ["--python-version", version, "--only-binary", ":all:", *without, "--output-file", os.devnull]
        uv("pip", "compile", "pyproject.toml", "--all-extras", *wheels)
    return ", ".join(versions)


def installed(environment: Path, what: str, modules: tuple[str, ...]) -> Path:
    """Make an environment with ``what`` alone, and import these modules; return its interpreter."""
    python = environment / "bin" / "python"
    uv("venv", "--python", sys.executable, str(environment))
    uv("pip", "install", "--python", str(python), what)
    run(str(python), "-W", "ignore", "-c", IMPORT_ALL, *modules, cwd=environment)
    return python


def use(extra: str, python: Path) -> None:
    """Use what is installed: a broker in a process; with the dashboard a whole cluster."""
    command = str(python.with_name("fila-cluster"))
    run(command, "--version", cwd=python.parent)
    if extra == "base":
        run(command, "--json", "demo", cwd=python.parent)
    if extra == "dashboard":
        run(command, "--json", "demo", "--web", "--for", "3s", cwd=python.parent)


def described(extra: str, python: Path) -> dict[str, str]:
    """Write the bill of materials of an environment; return the licences of what is in it, by package and version."""
    bill = ABOUT / f"{extra}.cdx.json"
    tool = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", str(ROOT / "pyproject.toml")]
    run(*tool, "--output-reproducible", "--output-file", str(bill), str(python), cwd=ROOT)
    listing = [sys.executable, "-m", "piplicenses", "--python", str(python), "--format", "json", "--from", "mixed"]
    found = json.loads(subprocess.run(listing, capture_output=True, check=True, text=True).stdout)
    return {f"{each['Name']} {each['Version']}": each["License"] for each in found if each["Name"] != PROJECT["name"]}


def check_licences(licences: dict[str, str]) -> str:
    """Write the licences down; fail if one is not accepted."""
    (ABOUT / "licences.json").write_text(json.dumps(dict(sorted(licences.items())), indent=2) + "\n")
    if refused := [f"{package}: {licence}" for package, licence in licences.items() if not is_accepted(licence)]:
        raise SystemExit(f"licences that ACCEPTED in {Path(__file__).name} does not name: {'; '.join(sorted(refused))}")
    return f"{len(licences)} packages"


def import_ms(python: Path) -> float:
    """Return how much time of the processor the client's import takes, in milliseconds."""
    command = [str(python), "-I", "-c", IMPORT_CLIENT]
    runs = [subprocess.run(command, capture_output=True, check=True, text=True).stdout for _ in range(IMPORTS)]
    return min(map(float, runs))


def check_import(took_ms: float) -> str:
    """Fail if the client's import is too slow; return how long it takes."""
    if took_ms > IMPORT_MS_MAX:
        raise SystemExit(
            f"importing the client takes {took_ms:.0f} ms of {IMPORT_MS_MAX:.0f} ms: "
            "python -X importtime -c 'from fila_cluster import Client' says for what"
        )
    return f"{took_ms:.0f} ms of {IMPORT_MS_MAX:.0f} ms"


def main() -> None:
    """Check everything, and say what was found."""
    os.environ.pop("PYTHONPATH", None)  # only what is installed counts
    for theirs, ours in SETTINGS.items():
        if theirs in os.environ:
            os.environ.setdefault(ours, os.environ[theirs])
    if PROJECT["optional-dependencies"].keys() != EXTRAS.keys():
        raise SystemExit(f"EXTRAS names {sorted(EXTRAS)}, and pyproject.toml has {sorted(PROJECT['optional-dependencies'])}")
    licences: dict[str, str] = {}
    imports_ms: list[float] = []
    with tempfile.TemporaryDirectory(prefix="fila-") as name:
        folder = Path(name)
        said("build")
        wheel, sdist = built(folder)
        ABOUT.mkdir()
        run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist), cwd=folder)
        found = {"wheel": check_size(wheel), "wheels of all dependencies for Python": check_wheels()}
        for extra, modules in {"base": BASE, **EXTRAS}.items():
            said(extra)
            python = installed(folder / extra, str(wheel) if extra == "base" else f"{wheel}[{extra}]", modules)
            use(extra, python)
            licences |= described(extra, python)
            imports_ms.append(import_ms(python))
            shutil.rmtree(folder / extra)
        said("sdist")
        python = installed(folder / "sdist", str(sdist), BASE)
        use("base", python)
        found |= {"import of the client": check_import(min(imports_ms)), "accepted licences": check_licences(licences)}
    said("found")
    print(*(f"{what}: {value}" for what, value in found.items()), sep="\n")
    print(f"{DIST} may be published")


if __name__ == "__main__":
    main()
