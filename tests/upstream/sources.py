"""The source distributions of installed packages."""

import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path


def fetch(package: str, folder: Path) -> Path:
    """Fetch and unpack the source distribution of the installed version of a package; return its folder."""
    wanted = f"{package}-{version(package)}"
    unpacked = folder / wanted
    if not unpacked.is_dir():
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--no-binary",
            ":all:",
        ]
        subprocess.run([*command, "--dest", str(folder), wanted.replace("-", "==", 1)], check=True)
        with tarfile.open(folder / f"{wanted}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return unpacked
