"""A process that kills others once the one that started it is gone, however it ended: a killed test can't clean up itself.

Rejected: ``PR_SET_PDEATHSIG``. It is sent when the *thread* ends that started the process, and tests start brokers from threads too.
"""

import subprocess
import sys
from typing import Self

_GUARD = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class Guard:
    """A context. What is still watched at its end, or at the end of this process, is killed with its process group."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", "-c", _GUARD]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1, start_new_session=True)

    def watch(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def release(self, group: int) -> None:
        """Forget a process group that was waited for: the number may be another's soon."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
