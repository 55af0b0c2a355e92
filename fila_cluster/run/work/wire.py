"""The settings of a process at its start, and its reports to its supervisor: a line of JSON each."""

import msgspec

from fila_cluster.app.telemetry import Tally

LINE_BYTES_MAX = 1 << 24
"""More than the counts of ten thousand handlers."""


class ProcessSettings(msgspec.Struct):
    """The settings of a process. ``fd``: its end of the socket to the supervisor; ``for_people``: the form of its log."""

    app: str
    folder: str
    fd: int
    grace_s: float
    endpoint: str | None = None
    for_people: bool = False


class Serves(msgspec.Struct, tag="serves"):
    """The queues exist, and the handlers are ready."""

    queues: list[str]


class TallyReport(msgspec.Struct, tag="counted"):
    """The outcomes of messages in this process so far, by queue."""

    tallies: dict[str, Tally]


Line = Serves | TallyReport
"""All lines."""

encode = msgspec.json.Encoder().encode_lines
_decoder = msgspec.json.Decoder(Line)


def decode(line: bytes) -> Line:
    """Read a line; :class:`msgspec.MsgspecError` if it is not valid."""
    found: Line = _decoder.decode(line)
    return found
