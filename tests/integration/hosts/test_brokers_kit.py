"""What brokers run from is got once, as a whole, and who lacks a program is told what to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster.cluster import PATIENCE_S
from tests.support.external.brokers import programs
from tests.support.external.brokers.broker import BrokerError
from tests.support.external.brokers.kit import kit
from tests.support.hosts.kafka import kafka_cluster
from tests.support.machine import KAFKA, require


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH, and an empty cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("FILA_KAFKA_CACHE", str(tmp_path / "cache"))
    return folder


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_missing_java_is_a_failure_that_says_what_to_install(tools: Path, tmp_path: Path) -> None:
    with pytest.raises(
        pytest.fail.Exception, match=r"need Java 17 or later, and there is no java: install it .*default-jre-headless maven"
    ):
        with kafka_cluster(tmp_path / "brokers", brokers=1):
            pass


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "java is Java 11: install it"),
        ('java version "1.8.0_381"', "java is Java 8: install it"),
        ("no", "java does not say which Java it is: install it"),
    ],
)
def test_another_java_is_named(tools: Path, says: str, problem: str) -> None:
    program(tools / "java", f"echo '{says}' >&2")
    assert problem in (programs.what_brokers_lack() or "")


def test_maven_is_needed_only_as_long_as_there_are_no_jars(tools: Path) -> None:
    program(tools / "java", """echo 'openjdk version "21.0.1" 2023-10-17' >&2""")
    assert "there is no mvn: install it" in (programs.what_brokers_lack() or "")
    programs.jars_folder().mkdir(parents=True)
    assert programs.what_brokers_lack() is None


@pytest.fixture
def fresh_kit() -> None:
    """A test that looks for the kit anew, in a cache of its own."""
    kit.cache_clear()
    yield
    kit.cache_clear()


@pytest.mark.usefixtures("fresh_kit")
def test_half_a_download_is_not_taken_for_a_whole(tools: Path) -> None:
    program(tools / "java", """echo 'openjdk version "17.0.1" 2021-10-19' >&2""")
    program(
        tools / "mvn",
        'for last; do :; done; echo half > "${last#-DoutputDirectory=}/kafka.jar"; echo no route to the registry; exit 1',
    )
    with pytest.raises(BrokerError, match=r"mvn .*ended with code 1:\nno route to the registry"):
        kit()
    assert {path.name for path in programs.kit_folder().iterdir()} == {"lock", "jars.draft.log"}


GET = """
from tests.support.external.brokers.kit import kit
made = kit()
assert made.formatted.is_dir()
"""


def test_two_processes_get_the_kit_at_the_same_time(tmp_path: Path) -> None:
    """Maven is replaced by a copy of the jars that are here already. A killed process has left half of them before."""
    require(KAFKA)
    jars = kit().jars
    left = tmp_path / "cache" / jars.parent.name / "jars.draft"
    left.mkdir(parents=True)
    (left / "half.jar").touch()
    fetched = tmp_path / "fetched"
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    program(bin_ / "mvn", f'for last; do :; done; echo once >> {fetched}; cp {jars}/*.jar "${{last#-DoutputDirectory=}}"')
    env = {
        **os.environ, "FILA_KAFKA_CACHE": str(tmp_path / "cache"), "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    getting = [subprocess.Popen([sys.executable, "-c", GET], env=env) for _ in range(2)]
    assert [process.wait(2 * PATIENCE_S) for process in getting] == [0, 0]
    assert fetched.read_text() == "once\n"
    (made,) = (tmp_path / "cache").iterdir()
    assert {jar.name for jar in (made / "jars").iterdir()} == {jar.name for jar in jars.iterdir()}
    assert not list(made.glob("*.draft"))
