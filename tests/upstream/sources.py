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
            unpack(archive, folder)
    return unpacked


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract an archive. Python has filters from 3.11.4 on, and warns from 3.12 on if none is named."""
    archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
