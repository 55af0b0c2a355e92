"""Files that a killed drain had begun to write and never logged.

Spark's file sink lists what belongs to its output in ``_spark_metadata``, and Spark reads nothing else. Other readers take every
file they find, so an attempt's leftovers would be rows twice. A name in the sink's own pattern that is not in its log can only
be one, since a drain writes to a directory of its own. Left out: outputs that are not on this machine's file system.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOG = "_spark_metadata"
_BATCH = re.compile(r"\d+(\.compact)?")
_WRITTEN = re.compile(r"part-\d{5}-[0-9a-f-]{36}[.-].*")


def remove_leftovers(output: str) -> int:
    """Remove them from a local directory in which nobody is writing; how many they were."""
    folder = Path(output)
    if "://" in output or not (folder / _LOG).is_dir():
        return 0
    logged = set(_logged_names(folder / _LOG))
    strangers = [file for file in folder.rglob("part-*") if _WRITTEN.fullmatch(file.name) and file.name not in logged]
    for file in strangers:
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    return len(strangers)


def _logged_names(log: Path) -> Iterator[str]:
    """A file of the log has a line with its version, then one JSON object for each file that was written."""
    for batch in log.iterdir():
        if _BATCH.fullmatch(batch.name):
            for line in batch.read_text().splitlines()[1:]:
                yield Path(unquote(urlsplit(json.loads(line)["path"]).path)).name
