"""Make the blocking client from the asyncio one, and the options in the signatures of the asyncio one from the table of
options.

``make blocking`` writes them, ``--check`` says whether they are up to date. Methods, their docstrings and types stand once,
in ``fila_cluster/client/asynchronous``. The modules of ``fila_cluster/client/blocking`` are the same text without ``async``
and ``await``, with other names, and with other words where the two clients differ for their users.
"""

import re
import subprocess
import sys
from pathlib import Path

from parts.signatures import MODULES, with_options

CLIENT = Path(__file__).parents[1] / "fila_cluster/client"
SOURCE, TARGET = CLIENT / "asynchronous", CLIENT / "blocking"
NOTE = "# Made by .ci/make_blocking.py from fila_cluster/client/asynchronous/{name}: edit that, then run `make blocking`.\n\n"

CLASSES = [
    "Delivery",
    *(name for file in SOURCE.glob("*.py") for name in re.findall(r"^class Async(\w+)", file.read_text(), re.M)),
]
SYNTAX = (
    (r"\basync (def|with|for) ", r"\1 "),
    (r"\bawait ", ""),
    (r"Coroutine\[Any, Any, (\w+)\]", r"\1"),
    (r"\bCoroutine, ", ""),
    (r"__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (rf"\bAsync({'|'.join(CLASSES)})\b", r"\1"),
    (r"\bclient\.asynchronous\b", "client.blocking"),
    (r"\bio\.reactor import Reactor\b", "io.pump import Pump"),
    (r"\bReactor\b", "Pump"),
    (r"\bLoopConfirmer\b", "ThreadConfirmer"),
    (r"\basyncio\.Future\b", "Future"),
    (r"    aclose = close\n\n", ""),
    (r"\bimport Delivery, Delivery\b", "import Delivery"),
)

WORDS = {
    "backlogs.py": {"import asyncio\n": "import time\n", "asyncio.sleep": "time.sleep"},
    "__init__.py": {
        "The asyncio client, and the source of the blocking one.": "The blocking client, made from the asyncio one.",
    },
    "batches.py": {"Several tasks may take": "Several threads may take"},
    "message_batches.py": {"Use it in an ``async with``": "Use it in a ``with``"},
    "consumer.py": {"Several tasks may take": "Several threads may take"},
    "producer.py": {
        "import asyncio\n": "from concurrent.futures import Future\n",
        "Several tasks may share it": "Several threads may share it",
        "Waits while": "Blocks while",
    },
    "consuming.py": {
        "interrupted or cancelled": "interrupted",
        "an async iterator of batches of deliveries. Use it in an ``async with``": (
            "an iterator of batches of deliveries. Use it in a ``with``"
        ),
        "an async iterator of deliveries. Use it in an ``async with``": "an iterator of deliveries. Use it in a ``with``",
    },
    "client.py": {
        "import asyncio\n": "import time\n",
        "asyncio.sleep": "time.sleep",
        """A connection to a broker for asyncio programs; it belongs to the event loop that first uses it.

    Calls are awaited and may run concurrently: calls of one tick of the loop travel together, so
    ``gather`` over many ``enqueue`` or ``ack`` costs a few frames.
""": """A connection to a broker for programs that block. Thread-safe: share one among threads.
""",
        "a batch of messages, to be used in an ``async with``": "a batch of messages, to be used in a ``with``",
        "not wait for each message. Use it in an ``async with``": "not wait for each message. Use it in a ``with``",
    },
}  # fmt: skip
"""Texts of the asyncio client that differ in the blocking one, by module; each must occur once."""


def blocking(name: str, source: str) -> str:
    """Return the text of a module of the blocking client, formatted."""
    text = source
    for there, here in WORDS.get(name, {}).items():
        if text.count(there) != 1:
            raise SystemExit(f"{SOURCE / name} does not say once: {there!r}; correct WORDS in .ci/make_blocking.py")
        text = text.replace(there, here)
    for pattern, replacement in SYNTAX:
        text = re.sub(pattern, replacement, text)
    return formatted(TARGET / name, NOTE.format(name=name) + text)


def formatted(file: Path, text: str) -> str:
    """Return the text of a module as ``make format`` writes it."""
    for command in (["check", "--quiet", "--fix", "--select", "I"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(file), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def made() -> dict[Path, str]:
    """Return the modules of the client that are made, as they should be."""
    found = {file: formatted(file, with_options(file.read_text())) for file in (CLIENT / name for name in MODULES)}
    for file in sorted(SOURCE.glob("*.py")):
        found[TARGET / file.name] = blocking(file.name, found.get(file) or file.read_text())
    return found


def main(arguments: list[str]) -> int:
    """Write them, or with ``--check`` name those that differ."""
    modules = made()
    differing = [file for file, text in modules.items() if not file.is_file() or file.read_text() != text]
    differing += [file for file in TARGET.glob("*.py") if file not in modules]
    if "--check" in arguments:
        for file in differing:
            print(f"{file} is not what .ci/make_blocking.py makes: run `make blocking`", file=sys.stderr)
        return int(bool(differing))
    TARGET.mkdir(exist_ok=True)
    for file in differing:
        if file in modules:
            file.write_text(modules[file])
        else:
            file.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
