"""What a process is told at its start, and what it tells its supervisor: a line of JSON each."""

import msgspec

from fila_cluster.app.telemetry import Tally

LINE_BYTES_MAX = 1 << 24
"""More than the counts of ten thousand handlers."""


class ProcessSettings(msgspec.Struct):
    """What a process is told. ``fd``: its end of the socket to the supervisor; ``for_people``: whether its log is read by people."""

    app: str
    folder: str
    fd: int
    grace_s: float
    endpoint: str | None = None
    for_people: bool = False


class Serves(msgspec.Struct, tag="serves"):
    """The broker knows the queues, and the handlers are ready."""

    queues: list[str]


class Counted(msgspec.Struct, tag="counted"):
    """What became of messages in this process so far, by queue."""

    tallies: dict[str, Tally]


Line = Serves | Counted
"""All lines."""

encode = msgspec.json.Encoder().encode_lines
_decoder = msgspec.json.Decoder(Line)


def decode(line: bytes) -> Line:
    """Read a line; :class:`msgspec.MsgspecError` if it is none."""
    found: Line = _decoder.decode(line)
    return found
