"""The chart of deploy/helm: its examples are what Kubernetes accepts, start a cluster, and say what does not fit together."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fila_cluster.run.supervisor.auth import init_auth, open_auth
from fila_cluster.run.supervisor.endpoints import WorkerEndpoint
from fila_cluster.run.supervisor.up import check_addresses
from tests.support import machine
from tests.unit.deploy.started import host, settings_of

DEPLOY = Path(__file__).parents[3] / "deploy"
CHART = DEPLOY / "helm"
EXAMPLES = sorted(CHART.glob("values-*.yml"))
IMAGE = "image.repository=registry.example.org/fila-cluster"
KUBERNETES = "1.32.0"
CUSTOM = {"ServiceMonitor"}
"""Kinds that Kubernetes itself does not have."""

pytestmark = pytest.mark.whole


@pytest.fixture(autouse=True)
def _needs_helm() -> None:
    machine.require(machine.HELM)


def helm(*arguments: object) -> "subprocess.CompletedProcess[str]":
    program = machine.program("helm")
    assert program is not None
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)


def rendered(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return helm("template", "fila", CHART, "--namespace", "queues", "--kube-version", KUBERNETES, "--set", IMAGE, *arguments)


def documents(*arguments: object) -> dict[tuple[str, str], dict[str, Any]]:
    told = rendered(*arguments)
    assert told.returncode == 0, told.stderr
    found = [each for each in yaml.safe_load_all(told.stdout) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def pod_of(found: dict[tuple[str, str], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod of the hosts, and its container."""
    pod = found["StatefulSet", "fila"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def containers(found: dict[tuple[str, str], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    pod, container = pod_of(found)
    yield from [container, *pod.get("initContainers", [])]


def arguments_of(found: dict[tuple[str, str], dict[str, Any]], tmp_path: Path) -> list[str]:
    """The command of the container, with its file of configuration here."""
    config = tmp_path / "fila.toml"
    config.write_text(found["ConfigMap", "fila"]["data"]["fila.toml"])
    return [str(config) if each == "/etc/fila/fila.toml" else each for each in pod_of(found)[1]["args"]]


def env_of(found: dict[tuple[str, str], dict[str, Any]], pod: str, secret: str) -> dict[str, str]:
    """The variables of a pod: its name where a field is asked for, and a text where a secret is."""
    env: dict[str, str] = {}
    for each in pod_of(found)[1]["env"]:
        value = each.get("value") or (pod if "fieldRef" in each["valueFrom"] else secret)
        env[each["name"]] = value.replace("$(FILA_HOSTS__NAME)", env.get("FILA_HOSTS__NAME", ""))
    return env


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.stem)
def test_lint_has_nothing_against_an_example(example: Path) -> None:
    told = helm("lint", "--strict", CHART, "--values", example, "--set", IMAGE)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "WARNING" not in told.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.stem)
def test_kubernetes_accepts_an_example(example: Path) -> None:
    machine.require(machine.LINTERS)
    from kubernetes_validate import validate  # noqa: PLC0415

    for (kind, _), each in documents("--values", example).items():
        if kind not in CUSTOM:
            validate(each, KUBERNETES.rpartition(".")[0], strict=True)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.stem)
def test_pods_are_confined_and_ports_and_volumes_fit(example: Path) -> None:
    found = documents("--values", example)
    pod, container = pod_of(found)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    volumes = {each["name"] for each in pod["volumes"]} | {"data"}
    for each in containers(found):
        confined = each["securityContext"]
        assert (confined["readOnlyRootFilesystem"], confined["allowPrivilegeEscalation"]) == (True, False)
        assert confined["capabilities"] == {"drop": ["ALL"]}
        assert {"requests", "limits"} <= each["resources"].keys()
        assert {mount["name"] for mount in each["volumeMounts"]} <= volumes
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    labels = found["StatefulSet", "fila"]["spec"]["template"]["metadata"]["labels"]
    for (kind, _), each in found.items():
        if kind == "Service":
            assert each["spec"]["selector"].items() <= labels.items()
            assert all(ports[port["name"]] == port["port"] for port in each["spec"]["ports"])
    assert found["PodDisruptionBudget", "fila"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert {"readinessProbe", "livenessProbe", "startupProbe"} <= container.keys()


def test_one_host_starts_with_its_settings(tmp_path: Path) -> None:
    found = documents("--values", CHART / "values-one-host.yml", "--set", "config.limits.max_queue_messages=1000000")
    settings, insecure = settings_of(arguments_of(found, tmp_path), {})
    check_addresses(settings, WorkerEndpoint("ipc://", None), insecure=insecure)
    assert (settings.server.shards, settings.server.workers, settings.storage.durability) == (4, 2, "fsync")
    assert settings.limits.max_queue_messages == 1_000_000
    assert "fila-dashboard.queues" in settings.dashboard.allowed_hosts
    assert settings.server.data_dir == Path("/var/lib/fila/data")


@pytest.mark.parametrize("example", ["hosts", "secure"])
def test_several_hosts_find_each_other_and_the_log(example: str, tmp_path: Path) -> None:
    found = documents("--values", CHART / f"values-{example}.yml")
    arguments, secret = arguments_of(found, tmp_path), "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN"
    made = [host(arguments, env_of(found, f"fila-{index}", secret), tmp_path) for index in range(3)]
    assert [each.replication.address for each, _ in made] == [f"fila-{index}.fila" for index in range(3)]
    assert len({each.name for each, _ in made}) == 3
    _, settings = made[0]
    assert settings.auth.enabled == (example == "secure")
    properties = made[0][0].replication.kafka.properties
    assert properties.get("security.protocol") == ("SASL_SSL" if example == "secure" else None)


def test_the_example_without_authentication_is_the_manifest_beside_it() -> None:
    """What both have is the same; only names and labels differ."""
    pod, container = pod_of(documents("--values", CHART / "values-hosts.yml"))
    manifest = {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "fila.yml").read_text())}
    other = manifest["StatefulSet"]["spec"]["template"]["spec"]
    (theirs,) = other["containers"]
    for name in ("readinessProbe", "livenessProbe", "startupProbe", "ports", "resources", "securityContext"):
        assert container[name] == _with_scheme(theirs[name], container[name]), name
    for name in ("securityContext", "terminationGracePeriodSeconds", "enableServiceLinks", "automountServiceAccountToken"):
        assert pod[name] == other[name], name


def _with_scheme(theirs: Any, ours: Any) -> Any:
    """A probe by HTTP whose scheme is left out has the usual one."""
    if isinstance(ours, dict) and "httpGet" in ours:
        assert ours["httpGet"]["scheme"] == "HTTP"
        return {**theirs, "httpGet": {**theirs["httpGet"], "scheme": "HTTP"}}
    return theirs


def test_a_pod_takes_its_keys_from_the_secret_and_keeps_api_keys_that_were_made_since(tmp_path: Path) -> None:
    init_auth(tmp_path / "made")
    secret, data_dir = tmp_path / "made" / "auth", tmp_path / "var" / "data"
    (init,) = pod_of(documents("--values", CHART / "values-secure.yml"))[0]["initContainers"]
    script = init["args"][0].replace("/etc/fila/auth", str(secret)).replace("/var/lib/fila/data", str(data_dir))

    def start() -> None:
        subprocess.run([*init["command"], script], check=True)

    start()
    assert open_auth(data_dir).stored == open_auth(tmp_path / "made").stored
    keys = (data_dir / "auth" / "keys.json").read_bytes()
    (secret / "keys.json").write_bytes(b"those of the first start")
    (secret / "server.json").write_bytes(b"another key of the server")
    start()
    assert (data_dir / "auth" / "keys.json").read_bytes() == keys
    assert (data_dir / "auth" / "server.json").read_bytes() == b"another key of the server"


def test_metrics_are_scraped_with_a_key_over_tls() -> None:
    found = documents("--values", CHART / "values-secure.yml")
    monitor, service = found["ServiceMonitor", "fila"]["spec"], found["Service", "fila-dashboard"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {each["name"] for each in service["spec"]["ports"]}
    assert (endpoint["scheme"], endpoint["path"]) == ("https", "/metrics")
    assert endpoint["authorization"]["credentials"] == {"name": "fila-metrics", "key": "key"}
    _, container = pod_of(found)
    assert container["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    others = [each for (kind, name), each in found.items() if kind == "Service" and name != "fila-dashboard"]
    assert not any(monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items() for each in others)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ([], "auth.enabled is false: set it, with auth.secret, or say insecure: true"),
        (["insecure=true", "replicas=3"], "replicas: 3 without replication.log: several hosts need a Kafka"),
        (["insecure=true", "replicas=0"], "replicas"),
        (["insecure=true", "replication.log=b:9092"], "replication"),
        (["insecure=true", "shard=3"], "shard"),
        (["insecure=true", "image.repository="], "image.repository is empty"),
        (["auth.enabled=true"], "dashboard.tlsSecret is empty"),
        (
            ["insecure=true", "serviceMonitor.enabled=true", "dashboard.enabled=false"],
            "serviceMonitor.enabled needs dashboard",
        ),
        (["auth.enabled=true", "dashboard.tlsSecret=t", "serviceMonitor.enabled=true"], "serviceMonitor.keySecret is empty"),
    ],
)
def test_what_does_not_fit_together_is_said(flags: list[str], problem: str) -> None:
    told = rendered(*(part for flag in flags for part in ("--set", flag)))
    assert told.returncode != 0
    assert problem in told.stderr


def test_without_a_dashboard_probes_ask_the_router() -> None:
    found = documents("--set", "insecure=true", "--set", "dashboard.enabled=false")
    assert pod_of(found)[1]["livenessProbe"]["tcpSocket"] == {"port": "clients"}
    assert ("Service", "fila-dashboard") not in found
