"""A Prometheus server for tests, and its tool that checks what is written for it."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from fila_cluster.run.config.settings import Address
from fila_cluster.run.supervisor.endpoints import Ports
from tests.support.cluster.cluster import PATIENCE_S, eventually

CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 200ms}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: fila
    static_configs: [{{targets: ["{target}"]}}]
"""
RULES = Path(__file__).parents[3] / "deploy" / "alerts.yml"


def promtool(*arguments: object) -> str:
    """What promtool says; fails if it finds anything wrong."""
    told = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


def complaints_about(page: str) -> list[str]:
    """What promtool has to say against a page of metrics."""
    told = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False)
    return (told.stdout + told.stderr).splitlines()


class Prometheus:
    """A server that scrapes one target each second: that is also how long an answer may take on a busy machine."""

    def __init__(self, directory: Path, address: Address, target: str) -> None:
        config = directory / "prometheus.yml"
        config.write_text(CONFIG.format(rules=RULES, target=target))
        flags = ["--config.file", config, "--storage.tsdb.path", directory / "tsdb", "--web.listen-address", address]
        self.api = f"http://{address}/api/v1"
        self.process = subprocess.Popen(["prometheus", *map(str, flags)], stderr=subprocess.DEVNULL)

    def query(self, expression: str) -> dict[tuple[str, ...], float]:
        """An instant vector, by the values of its labels in the order of their names; without job, instance and the metric's name."""
        hidden = {"__name__", "instance", "job"}
        found = self._get("query", query=expression)["result"]
        return {
            tuple(value for name, value in sorted(each["metric"].items()) if name not in hidden): float(each["value"][1])
            for each in found
        }

    def firing(self) -> set[str]:
        """The names of the alerts that fire, or are about to."""
        return {alert["labels"]["alertname"] for alert in self._get("alerts")["alerts"]}

    def answers(self) -> bool:
        """Whether it is up."""
        try:
            self._get("query", query="1")
        except URLError:
            return False
        return True

    def _get(self, path: str, **parameters: str) -> dict[str, list[dict[str, dict[str, str]]]]:
        with urlopen(f"{self.api}/{path}?{urlencode(parameters)}", timeout=PATIENCE_S) as answer:
            data: dict[str, list[dict[str, dict[str, str]]]] = json.load(answer)["data"]
            return data


@contextmanager
def scraping(directory: Path, target: str) -> Iterator[Prometheus]:
    """A server that is gone afterwards."""
    with Ports() as ports:
        server = Prometheus(directory, ports.reserve(Address("127.0.0.1", 0), "--web.listen-address"), target)
        try:
            eventually(server.answers, "Prometheus answers")
            yield server
        finally:
            server.process.terminate()
            server.process.wait(PATIENCE_S)
