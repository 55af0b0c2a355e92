"""How tests run Spark's Java: with a quick start rather than speed, and with its classes from an archive.

Spark loads and checks some 20,000 classes before it does anything. A class archive (JDK 13 and later) holds them as an earlier run has
parsed them: a session is up, and has done its first jobs, in half the time and with half the CPU. The archive fits only the Java and the
jars that it was made with, so it stands beside them, in the environment that has PySpark. A Java that finds it unfit starts without it.
"""

import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

import pyspark

from tests.support.cached import draft_of, locked
from tests.support.external.brokers import programs

ROOT = Path(__file__).parents[3]
FOLDER = Path(sys.prefix) / "var" / "spark"
MAKE_S_MAX = 240.0
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
"""Tests run for seconds: nothing is optimised for later. Without the last, an unfit archive is a line on standard output."""
_PROGRAM = "tests.support.external.spark_classes"


@cache
def quick_java() -> str:
    """The options of Java. The first time on a machine this takes half a minute."""
    java = programs.java()
    assert java is not None, "ask machine.JAVA before"
    version = sha256(f"{programs.words_of(java)} {pyspark.__version__}".encode()).hexdigest()[:12]
    archive = FOLDER / f"classes-{version}.jsa"
    if not archive.is_file():
        archive.parent.mkdir(parents=True, exist_ok=True)
        with locked(archive.with_suffix(".lock")):
            if not archive.is_file():
                _make(archive)
    return f"{QUICK} -XX:SharedArchiveFile={archive}" if archive.is_file() else QUICK


def _make(archive: Path) -> None:
    """Run the program, and let its Java write the classes that it has loaded. Some builds of Java can't."""
    with draft_of(archive) as draft:
        made = draft / archive.name
        options = f"{QUICK} -XX:ArchiveClassesAtExit={made}"
        environment = os.environ | {"SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable}
        command = [sys.executable, "-m", _PROGRAM, str(draft)]
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=MAKE_S_MAX, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)} ended with code {done.returncode}:\n{done.stderr[-3000:]}"
        with suppress(FileNotFoundError):
            made.replace(archive)
