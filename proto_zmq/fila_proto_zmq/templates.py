"""Queue templates: how they are kept in the runtime config, and which one a queue's name matches.

A template is a key of the runtime config: ``fila:template:`` and the pattern. Its value is the given options as JSON. So it
has an owner, copies on every shard, and a history like any other key. Only :class:`~fila_proto_zmq.commands.PutTemplate` and
its like set such keys, and lists of the config leave them out.

A pattern is a queue's name, or the beginning of names and ``*``. Of the patterns that match a name, the one with the longest
beginning holds, the name itself before any other. A look-up cuts the name to each length that a pattern has, so it costs no
more with many templates.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from fila_proto_zmq.commands import QueueOptions
from fila_proto_zmq.runtime_config import TEMPLATE, is_template

_ANY: Final = "*"

Fields = msgspec.defstruct(
    "Fields", [(field.name, field.type, None) for field in msgspec.structs.fields(QueueOptions)], omit_defaults=True
)
"""The options by name: in the history of the config people read them."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Fields).decode


class Match(NamedTuple):
    """A template: its pattern and the options of its queues."""

    pattern: str
    options: QueueOptions


def encode_options(options: QueueOptions) -> str:
    """Return options as the value of a key."""
    return _encode(Fields(**msgspec.structs.asdict(options))).decode()


def decode_options(value: str) -> QueueOptions | None:
    """Return the options in a value; None if a later version wrote them so that this one can't read them."""
    try:
        return QueueOptions(**msgspec.structs.asdict(_decode(value)))
    except (msgspec.MsgspecError, RecursionError):
        return None


class Templates:
    """The templates of a runtime config, by pattern."""

    def __init__(self) -> None:
        self._options: dict[str, QueueOptions] = {}
        self._lengths: list[int] = []
        """The different lengths of the beginnings of patterns with ``*``, the longest first."""

    def __len__(self) -> int:
        return len(self._options)

    def change(self, changes: Mapping[str, str | None]) -> None:
        """Follow a change of the config."""
        changed = False
        for key, value in changes.items():
            if not is_template(key):
                continue
            changed = True
            options = None if value is None else decode_options(value)
            if options is None:
                self._options.pop(key[len(TEMPLATE) :], None)
            else:
                self._options[key[len(TEMPLATE) :]] = options
        if changed:
            lengths = {len(pattern) - len(_ANY) for pattern in self._options if pattern.endswith(_ANY)}
            self._lengths = sorted(lengths, reverse=True)

    def get(self, pattern: str) -> QueueOptions | None:
        """Return the options of a pattern; None if it has no template."""
        return self._options.get(pattern)

    def find(self, name: str) -> Match | None:
        """Return the template for a queue; None if no pattern matches its name."""
        options = self._options.get(name)
        if options is not None:
            return Match(name, options)
        for length in self._lengths:
            if length <= len(name) and (options := self._options.get(name[:length] + _ANY)) is not None:
                return Match(name[:length] + _ANY, options)
        return None

    def listed(self, prefix: str, after: str) -> Iterator[Match]:
        """Yield the templates whose patterns start with ``prefix`` and come after ``after``, in order."""
        for pattern in sorted(self._options):
            if pattern.startswith(prefix) and pattern > after:
                yield Match(pattern, self._options[pattern])
