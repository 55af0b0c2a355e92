"""The examples of deploy/ and docs/hosts.md start hosts that find each other and their log."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import yaml

from fila_cluster.run.supervisor.member import HostMember
from tests.unit.deploy.started import host

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "hosts.md").read_text()
BROKERS = (ROOT / "docs" / "kafka.md").read_text()


def find_each_other(hosts: list[HostMember]) -> None:
    assert [each.replication.router for each in hosts] == [f"tcp://{each.replication.address}:5556" for each in hosts]
    assert len({each.replication.address for each in hosts}) == len(hosts) == len({each.name for each in hosts})
    assert not any(each.others for each in hosts), "they hear of each other through the log"
    assert len({str(each.replication.kafka) for each in hosts}) == 1


def test_the_hosts_of_the_compose_file_find_each_other_and_the_brokers(tmp_path: Path):
    services = yaml.safe_load((DEPLOY / "hosts.compose.yml").read_text())["services"]
    ours = {name: each for name, each in services.items() if name.startswith("fila-")}
    made = [host(shlex.split(each["command"]), each["environment"], tmp_path)[0] for each in ours.values()]
    find_each_other(made)
    assert [each.replication.address for each in made] == [*ours]
    brokers = {name: each["environment"] for name, each in services.items() if name.startswith("kafka-")}
    assert made[0].replication.kafka.bootstrap_servers == ",".join(f"{name}:9092" for name in brokers)
    assert [env["KAFKA_ADVERTISED_LISTENERS"] for env in brokers.values()] == [f"PLAINTEXT://{name}:9092" for name in brokers]
    voters = ",".join(f"{env['KAFKA_NODE_ID']}@{name}:9093" for name, env in brokers.items())
    assert {env["KAFKA_CONTROLLER_QUORUM_VOTERS"] for env in brokers.values()} == {voters}
    volumes = [each["volumes"] for each in services.values()]
    assert len({str(each) for each in volumes}) == len(services)


def kubernetes(file: str) -> dict[tuple[str, str], dict[str, Any]]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / file).read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def test_the_pods_of_kubernetes_find_each_other_and_the_brokers(tmp_path: Path):
    found = kubernetes("fila.yml")
    pods = found["StatefulSet", "fila"]["spec"]
    (container,) = pods["template"]["spec"]["containers"]

    def env(pod: str) -> dict[str, str]:
        values = {each["name"]: each.get("value", pod) for each in container["env"]}
        return {name: value.replace("$(FILA_HOSTS__NAME)", values["FILA_HOSTS__NAME"]) for name, value in values.items()}

    made = [host(container["args"], env(f"fila-{index}"), tmp_path)[0] for index in range(pods["replicas"])]
    find_each_other(made)
    assert [each.replication.address for each in made] == [f"fila-{index}.{pods['serviceName']}" for index in range(3)]
    assert ("Kafka", made[0].replication.kafka.bootstrap_servers.removesuffix("-kafka-bootstrap:9092")) in kubernetes(
        "kafka.yml"
    )
    labels = pods["template"]["metadata"]["labels"]
    selectors = [each["spec"]["selector"] for (kind, _), each in found.items() if kind == "Service"]
    selectors += [found["PodDisruptionBudget", "fila"]["spec"]["selector"]["matchLabels"], pods["selector"]["matchLabels"]]
    assert all(selector == labels for selector in selectors)
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    services = [port for (kind, _), each in found.items() if kind == "Service" for port in each["spec"]["ports"]]
    assert all(ports[each["name"]] == each["port"] for each in services)


def test_the_service_of_systemd_and_the_documented_settings_fit(tmp_path: Path):
    (line,) = re.findall(r"^ExecStart=(.+)$", (DEPLOY / "fila-node.service").read_text(), re.M)
    (text,) = re.findall(r"```toml\n(.+?)```", PAGE, re.S)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "fila.toml").write_text(text)
    made, settings = host(shlex.split(line)[1:], {}, tmp_path)
    assert (made.name, made.replication.address) == ("a", "a.example.org")
    assert (made.replication.router, made.others) == ("tcp://a.example.org:5556", ())
    assert made.replication.kafka.properties == tomllib.loads(text)["replication"]["properties"]
    assert settings.auth.enabled
    assert settings.server.data_dir == Path("/var/lib/fila")


def test_the_brokers_have_the_documented_settings():
    text, _ = re.findall(r"```properties\n(.+?)```", BROKERS, re.S)  # behind it: a broker without a container
    documented = dict(line.split("=") for line in text.split())
    assert len(documented) == 4
    kafka = kubernetes("kafka.yml")["Kafka", "fila-log"]["spec"]["kafka"]["config"]
    assert documented.items() <= {name: str(value) for name, value in kafka.items()}.items()
    services = yaml.safe_load((DEPLOY / "hosts.compose.yml").read_text())["services"]
    for broker in (each["environment"] for name, each in services.items() if name.startswith("kafka-")):
        for name, value in documented.items():
            assert str(broker[f"KAFKA_{name.upper().replace('.', '_')}"]) == value
