"""What a process is told by the one that starts it: settings as one line of JSON on standard input; the input's end says: stop.

So a child never outlives its parent by much, however that ends, and no secret is seen in a list of processes.
"""

from typing import Final, TypeVar

import msgspec

STDIN: Final = 0

_Settings = TypeVar("_Settings", bound=msgspec.Struct)


def settings_told(kind: type[_Settings]) -> _Settings:
    """Wait for the settings and read them; :class:`msgspec.MsgspecError` if they are none of that kind."""
    with open(STDIN, "rb", buffering=0, closefd=False) as stdin:  # unbuffered: its end is watched later
        return msgspec.json.decode(stdin.readline(), type=kind)
