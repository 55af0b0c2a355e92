"""The requirements of Spark: its Python package and a Java, checked without starting either.

Spark itself reports a missing Java as an exit code of a shell script, five seconds later.
"""

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

JAVA_VERSION_MIN = 17
_PACKAGES = ("pyspark", "pyarrow", "numpy", "matplotlib", "jinja2")
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
"""``17.0.15``, or ``1.8.0`` for Java 8."""
_ADVICE = (
    f"Spark needs Java {JAVA_VERSION_MIN} or later: install it (Debian, Ubuntu: apt-get install default-jre-headless; "
    "macOS: brew install openjdk@17; others: https://adoptium.net), or name it with JAVA_HOME"
)


def what_is_missing() -> str | None:
    """Return one line with what is missing and how to get it; None if nothing is."""
    return _missing_packages() or what_java_lacks()


def what_java_lacks() -> str | None:
    """Return one line if there is no Java that Spark can run on; None if there is one."""
    java = _java()
    if java is None:
        return _ADVICE
    found = _version_of(java)
    if found is None:
        return f"{java} does not say which Java it is. {_ADVICE}"
    return None if found >= JAVA_VERSION_MIN else f"{java} is Java {found}. {_ADVICE}"


def _missing_packages() -> str | None:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    return f"{' and '.join(missing)} not installed: pip install 'fila-cluster[spark]'" if missing else None


def _java() -> str | None:
    """Return the Java that Spark's scripts would choose."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def _version_of(java: str) -> int | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else None
