"""The programs that brokers need: Java to run, and Maven to get the jars. This module imports nothing that has to be installed."""

import os
import re
import shutil
import subprocess
from functools import cache
from hashlib import sha256
from pathlib import Path

JAVA_VERSION_MIN = 17
PACKAGES = "default-jre-headless maven"
"""Of Debian. The default Java of Debian 12 is 17 (``openjdk-17-jre-headless``)."""
POM = Path(__file__).with_name("pom.xml")
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def java() -> str | None:
    """The Java of ``JAVA_HOME``, else the one in ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def maven() -> str | None:
    return shutil.which("mvn")


@cache
def words_of(java: str) -> str:
    """What a Java says of its version; empty if it can't run."""
    try:
        return subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


def kit_folder() -> Path:
    """The folder of the jars, in the user's cache unless ``FILA_KAFKA_CACHE`` names another place. Another ``pom.xml`` has another one."""
    cached = os.environ.get("FILA_KAFKA_CACHE")
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fila-cluster" / "kafka"
    return (Path(cached).absolute() if cached else usual) / sha256(POM.read_bytes()).hexdigest()[:12]


def jars_folder() -> Path:
    """Where the jars are, all of them, or nothing is."""
    return kit_folder() / "jars"


def what_brokers_lack() -> str | None:
    """One line if brokers can't run here, with what to install; None if they can."""
    advice = f"install it (Debian: apt-get install --no-install-recommends {PACKAGES})"
    found = java()
    if found is None:
        return (
            f"Kafka brokers need Java {JAVA_VERSION_MIN} or later, and there is no java: {advice}, or name one with JAVA_HOME"
        )
    version = _VERSION.search(words_of(found))
    if version is None:
        return f"Kafka brokers need Java {JAVA_VERSION_MIN} or later, and {found} does not say which Java it is: {advice}"
    if int(version[1]) < JAVA_VERSION_MIN:
        return f"Kafka brokers need Java {JAVA_VERSION_MIN} or later, and {found} is Java {version[1]}: {advice}"
    if not jars_folder().is_dir() and maven() is None:
        return f"the jars of Kafka's brokers are got with Maven, and there is no mvn: {advice}"
    return None
