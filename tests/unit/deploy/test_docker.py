"""The image and the compose files of deploy/: the linter has nothing against them, and they start a cluster that its monitors find."""

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from fila_cluster.run.supervisor.endpoints import WorkerEndpoint
from fila_cluster.run.supervisor.up import check_addresses
from tests.support import machine
from tests.unit.deploy.started import settings_of

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSED = ["compose.yml", "hosts.compose.yml"]


def loaded(file: str) -> Any:
    return yaml.safe_load((DEPLOY / file).read_text())


def instruction(name: str) -> Any:
    """The value of the last instruction of this name, which is JSON."""
    return json.loads(re.findall(rf"^{name} (\[.+\])$", DOCKERFILE, re.M)[-1])


@pytest.mark.whole
def test_the_linter_has_nothing_against_the_image() -> None:
    machine.require(machine.LINTERS)
    program = machine.program("hadolint")
    assert program is not None
    told = subprocess.run([program, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (0, "")


def test_the_image_runs_without_root_from_sources_that_docker_may_read() -> None:
    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.M) == ["10001:10001"]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.M)
    sources = {source for each in copied for source in each.split()}
    allowed = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().split() if line.startswith("!")}
    assert sources == allowed
    assert all((ROOT / source).exists() for source in sources)


def test_the_image_starts_one_host() -> None:
    entry, command = instruction("ENTRYPOINT"), instruction("CMD")
    settings, insecure = settings_of([*entry, *command][1:], {})
    check_addresses(settings, WorkerEndpoint("ipc://", None), insecure=insecure)
    assert str(settings.server.data_dir) == re.findall(r"^VOLUME (.+)$", DOCKERFILE, re.M)[0]
    assert str(settings.server.listen_addr.port) in re.findall(r"^EXPOSE (.+)$", DOCKERFILE, re.M)[0].split()
    with (DEPLOY.parent / "pyproject.toml").open("rb") as file:
        assert entry[0] in tomllib.load(file)["project"]["scripts"]


@pytest.mark.parametrize("file", COMPOSED)
def test_containers_are_confined_and_mount_what_there_is(file: str) -> None:
    composed = loaded(file)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, service in composed["services"].items():
        if not name.startswith("kafka"):
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
            assert service["security_opt"] == ["no-new-privileges:true"]
        if "build" in service:
            assert service["build"]["args"]["EXTRAS"] in extras
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).samefile(DEPLOY / "Dockerfile")
        for source, *_ in (each.split(":") for each in service["volumes"]):
            assert (DEPLOY / source).exists() if source.startswith(".") else source in composed["volumes"], source
        assert all(each.startswith("127.0.0.1:") for each in service.get("ports", []))


def test_monitors_find_the_cluster_and_each_other() -> None:
    services = loaded("compose.yml")["services"]
    settings, insecure = settings_of(shlex.split(services["fila"]["command"]), {})
    check_addresses(settings, WorkerEndpoint("ipc://", None), insecure=insecure)
    scraped, alone = loaded("compose.prometheus.yml"), loaded("prometheus.yml")
    (target,) = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == f"fila:{settings.dashboard.listen_addr.port}"
    scraped["scrape_configs"][0]["static_configs"] = alone["scrape_configs"][0]["static_configs"]
    assert scraped == alone, "nothing else differs"
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == alone["global"]["scrape_interval"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "fila.yml").read_text())["providers"]
    mounts = dict(each.split(":")[:2] for each in services["grafana"]["volumes"])
    assert mounts["./grafana"] == provider["options"]["path"]
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DEPLOY / "grafana" / Path(home).relative_to(provider["options"]["path"])).exists()
