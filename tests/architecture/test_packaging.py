"""What the project declares, builds and installs."""

import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from fila_proto_zmq.version import VERSION
from tests.architecture.sources import PACKAGES, ROOT, imports_of, roots, sources
from tests.support.machine import leave_out

SPARK = PACKAGES["fila_cluster"] / "spark"
DASHBOARD = PACKAGES["fila_cluster"] / "ops" / "dashboard"
REMOTE = PACKAGES["fila_cluster"] / "run" / "backup" / "remote.py"
KAFKA = PACKAGES["fila_worker"] / "log" / "kafka"
RELOAD = PACKAGES["fila_cluster"] / "run" / "work" / "supervising.py"
OUTBOX = PACKAGES["fila_cluster"] / "outbox"
OUTBOX_COMMANDS = PACKAGES["fila_cluster"] / "cli" / "queues" / "outbox.py"
CELERY = PACKAGES["fila_cluster"] / "celery"
DRAMATIQ = PACKAGES["fila_cluster"] / "dramatiq"
DJANGO = PACKAGES["fila_cluster"] / "django"
PLUGIN = PACKAGES["fila_cluster"] / "testing" / "plugin.py"
OPTIONAL = {PLUGIN, SPARK, DASHBOARD, REMOTE, KAFKA, RELOAD, OUTBOX, OUTBOX_COMMANDS, CELERY, DRAMATIQ, DJANGO}
"""What needs an extra."""


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_wheel_holds_all_packages_under_their_installed_names(project: dict) -> None:
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {Path(folder).name: ROOT / folder for folder in wheel} == PACKAGES
    assert set(project["tool"]["hatch"]["build"]["dev-mode-dirs"]) == {".", "router", "worker", "proto_zmq"}


def test_every_package_is_typed() -> None:
    assert {name for name, folder in PACKAGES.items() if not (folder / "py.typed").is_file()} == set()


def test_the_build_reads_the_version_where_the_parts_do(project: dict) -> None:
    source = project["tool"]["hatch"]["version"]
    found = re.search(source["pattern"], (ROOT / source["path"]).read_text())
    assert "version" in project["project"]["dynamic"]
    assert found is not None
    assert found["version"] == VERSION


def declared_in(requirements: list[str]) -> set[str]:
    return {re.split(r"[;<>=\[ ]", line)[0] for line in requirements}


def used_by(files: list[Path]) -> set[str]:
    """What is to be installed for these files, by the names that packages have in an index."""
    modules = {"zmq": "pyzmq", "pydantic_settings": "pydantic-settings", "pydantic_core": "pydantic"}
    modules |= {"prometheus_client": "prometheus-client", "opentelemetry": "opentelemetry-sdk"}
    modules |= {"py4j": "pyspark", "markupsafe": "jinja2"}  # theirs, and brought along by them
    modules |= {"amqp": "kombu"}
    modules |= {"confluent_kafka": "confluent-kafka"}
    used = set().union(*(roots(imports_of(file, type_checking=False)) for file in files))
    return {modules.get(name, name) for name in used - sys.stdlib_module_names - PACKAGES.keys()}


def test_everything_that_is_imported_is_declared(project: dict) -> None:
    declared = declared_in(project["project"]["dependencies"])
    files = [file for file in sources(*PACKAGES.values()) if not OPTIONAL & {file, *file.parents}]
    assert used_by(files) - declared == set()


@pytest.mark.parametrize(
    ("extra", "files"),
    [
        ("spark", sources(SPARK)),
        ("dashboard", sources(DASHBOARD)),
        ("backup", [REMOTE]),
        ("outbox", [*sources(OUTBOX), OUTBOX_COMMANDS]),
        ("celery", sources(CELERY)),
        ("hosts", [*sources(KAFKA), REMOTE]),
        ("reload", [RELOAD]),
        ("dramatiq", sources(DRAMATIQ)),
        ("testing", [PLUGIN]),
    ],
)
def test_what_a_part_needs_is_declared_as_its_extra(project: dict, extra: str, files: list[Path]) -> None:
    declared = declared_in(project["project"]["dependencies"])
    assert used_by(files) - declared == declared_in(project["project"]["optional-dependencies"][extra])


def test_django_is_an_extra_and_its_tasks_a_package_beside_older_ones(project: dict) -> None:
    """Which package has the tasks is found at run time, so no import names it."""
    declared = declared_in(project["project"]["dependencies"])
    assert used_by(sources(DJANGO)) - declared == {"django"}
    assert declared_in(project["project"]["optional-dependencies"]["django"]) == {"django", "django-tasks"}


@pytest.mark.parametrize(
    ("licence", "accepted"),
    [
        ("MIT License", True),
        ("Apache-2.0 AND BSD-3-Clause", True),
        ("Apache-2.0 AND GPL-3.0-only", False),
        ("GPL-3.0-only AND (Apache-2.0 OR MIT)", False),
        ("GPL-2.0-or-later OR MIT", True),
        ("BSD License; GNU General Public License (GPL)", True),
        ("LGPL-3.0-only", True),
        ("GNU General Public License v3 (GPLv3)", False),
        ("AGPL-3.0", False),
        ("Limited, with a disclaimer", False),
        ("UNKNOWN", False),
    ],
)
def test_make_release_check_accepts_licences_by_their_parts(
    monkeypatch: pytest.MonkeyPatch, licence: str, accepted: bool
) -> None:
    monkeypatch.syspath_prepend(ROOT / ".ci")
    release = importlib.import_module("release")
    assert release.is_accepted(licence) is accepted


@pytest.mark.whole
def test_a_built_wheel_holds_the_packages_and_a_description_whose_links_lead_somewhere(project: dict, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path)]
    built = subprocess.run([*pip, str(ROOT)], capture_output=True, text=True, timeout=240, check=False)
    if built.returncode:
        leave_out("no build backend to be had here", built.stderr.strip()[-1000:])
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)
    ours = {f"{package}/{file.relative_to(folder)}" for package, folder in PACKAGES.items() for file in sources(folder)}
    assert {name for name in names if name.endswith(".py")} == ours
    assert "fila_cluster/spark/report/page.html" in names
    assert [name for name in names if "__pycache__" in name or "/tests/" in name] == []
    (about,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    links = re.findall(r"\]\(([^)]+)\)", zipfile.ZipFile(wheel).read(about).decode())
    sources_of = re.compile(rf"{re.escape(project['project']['urls']['Source'])}/(?:blob|raw)/v{VERSION}/([^#]+)")
    led_to = [sources_of.match(link) for link in links]
    assert len(led_to) > 30
    assert [link for link, found in zip(links, led_to, strict=True) if not (found and (ROOT / found[1]).exists())] == []
