"""``python -m tests.newcomer``: time what somebody does first who has nothing but Python, make and git.

A clone of the last commit, ``make up``, three pages of the tutorial as they stand, and the dashboard. pip has an empty cache. A command
that fails or prints something else than its page shows, and more than :data:`TOTAL_S_MAX` altogether, are errors.
"""

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

from tests.examples.documents import DOCS, Reader, blocks

sys.path.append(str(DOCS.parent / ".ci"))
from environments import bare, cloned, up

PAGES = {
    "a first message": "tutorial/1-first-queue.md",
    "two tenants, served fairly": "tutorial/2-two-tenants.md",
    "a limit that holds": "tutorial/3-a-providers-limit.md",
}
TOTAL_S_MAX = 300.0


class Clock:
    """The steps, with the seconds that each took."""

    def __init__(self) -> None:
        self.took: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time what is done within."""
        began = time.monotonic()
        yield
        self.took[name] = time.monotonic() - began

    def table(self) -> str:
        """Return a line for each step, and the sum."""
        return "\n".join(f"{name:<32}{took:6.1f} s" for name, took in [*self.took.items(), ("total", self.total_s)])

    @property
    def total_s(self) -> float:
        """The sum of all steps."""
        return sum(self.took.values())


def main() -> None:
    """Do it, and print the table."""
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="fila-") as name, ExitStack() as stack:
        folder = Path(name)
        os.environ["PIP_CACHE_DIR"] = str(folder / "pip")
        os.environ.pop("PYTHONPATH", None)  # only what make installs counts
        path = bare(folder)
        with clock.step("git clone"):
            clone = cloned(folder)
        with clock.step("make up, until it serves"):
            ready = stack.enter_context(up(clone, path))
        endpoint, dashboard = re.findall(r"\w+://[\w.:]+", ready)
        reader = Reader(folder, endpoint=endpoint, dashboard=dashboard, path=f"{clone}/.venv/bin:{path}")
        for step, page in PAGES.items():
            with clock.step(step):
                for block in blocks(page):
                    reader.follow(block)
        with clock.step("the dashboard"), urlopen(dashboard) as answer:
            if b"fila-cluster" not in answer.read():
                raise SystemExit(f"{dashboard} is no dashboard")
    print(f"\n{clock.table()}")
    if clock.total_s > TOTAL_S_MAX:
        raise SystemExit(f"that is more than {TOTAL_S_MAX:.0f} s")


if __name__ == "__main__":
    main()
