"""The structure of RocksDB's own files, as far as RocksDB overlooks damage in them.

For RocksDB, a write-ahead log that ends in the middle of a record was cut by a crash, and it opens without the rest. It does
the same in the middle of a series of logs, with a missing log, and with a manifest without its end. Then messages are missing
without an error. The files themselves show it: batches in logs are numbered without gaps, and the manifest names the oldest
log that is needed. Checksums are not verified here: RocksDB does that when it opens a database.

Both kinds of files have the format of LevelDB's ``doc/log_format.md``: blocks of 32 KiB with records, which are split where a
block ends.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct, error
from typing import Final, NamedTuple

_BLOCK_BYTES: Final = 32 * 1024
_HEAD: Final = Struct("<IHB")
"""Checksum, length, type."""
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_BATCH_HEAD: Final = Struct("<QI")
"""The number of a batch's first change, and the number of its changes."""


class TornError(Exception):
    """A file ends in the middle of a record, or has something else where a record should begin. ``at``: its offset.

    ``at_end``: no record can be behind it, as after a crash.
    """

    def __init__(self, at: int, *, at_end: bool) -> None:
        super().__init__(f"byte {at:,}")
        self.at = at
        self.at_end = at_end


def records(path: Path, bytes_max: int | None = None) -> Iterator[bytes]:
    """Yield the records of a log, up to ``bytes_max`` of each. Raise :class:`TornError` where it ends too early."""
    parts: list[bytes] = []
    for at, kind, data in _fragments(path):
        if kind in {_FULL, _FIRST} if parts else kind in {_MIDDLE, _LAST}:
            raise TornError(at, at_end=False)
        parts.append(data if bytes_max is None else data[: max(0, bytes_max - sum(map(len, parts)))])
        if kind in {_FULL, _LAST}:
            yield b"".join(parts)
            parts = []
    if parts:
        raise TornError(path.stat().st_size, at_end=True)


def _fragments(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield the offset, the type and the bytes of each piece of a record."""
    begin = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            at = 0
            while len(block) - at >= _HEAD.size:
                _, length, kind = _HEAD.unpack_from(block, at)
                data_at = at + _HEAD.size
                if not _FULL <= kind <= _LAST or data_at + length > len(block):
                    last = len(block) < _BLOCK_BYTES and _FULL <= kind <= _LAST
                    raise TornError(begin + at, at_end=last and _next_sound(block, at + 1) is None)
                yield begin + at, kind, block[data_at : data_at + length]
                at = data_at + length
            if len(block) < _BLOCK_BYTES and at < len(block):
                raise TornError(begin + at, at_end=True)  # in a header
            begin += len(block)


# --- reading around damage --------------------------------------------------------------------------------------------


def rescued(path: Path) -> Iterator[bytes]:
    """Yield the records of a log whose checksums are right, whatever is between them."""
    parts: list[bytes] = []
    whole = False
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            for kind, data in _sound_fragments(block):
                if kind in {_FULL, _FIRST}:
                    parts, whole = [], True
                elif kind == _LOST:
                    whole = False
                parts.append(data)
                if kind in {_FULL, _LAST}:
                    if whole:
                        yield b"".join(parts)
                    parts, whole = [], False


def _sound_fragments(block: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the sound pieces of records in a block, with :data:`_LOST` where something is missing."""
    at: int | None = 0
    while at is not None and len(block) - at >= _HEAD.size:
        _, length, kind = _HEAD.unpack_from(block, at)
        if _sound_at(block, at):
            yield kind, block[at + _HEAD.size : at + _HEAD.size + length]
            at += _HEAD.size + length
        else:
            yield _LOST, b""
            at = _next_sound(block, at + 1)


def _next_sound(block: bytes, begin: int) -> int | None:
    """Return where the next sound piece of a record begins in a block: a second for a whole block of random bytes."""
    return next((at for at in range(begin, len(block) - _HEAD.size) if _sound_at(block, at)), None)


def _sound_at(block: bytes, at: int) -> bool:
    if not _FULL <= block[at + _KIND_AT] <= _LAST:
        return False
    stored, length, _ = _HEAD.unpack_from(block, at)
    end = at + _HEAD.size + length
    return end <= len(block) and _masked(_crc32c(block[at + _KIND_AT : end])) == int(stored)


_KIND_AT: Final = _HEAD.size - 1
_LOST: Final = 0


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # noqa: PLW2901 # bit by bit
        table.append(value)
    return table


_CRC_TABLE: Final = _crc_table()


def _crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of some bytes: 80 ns each."""
    crc, table = 0xFFFFFFFF, _CRC_TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _masked(crc: int) -> int:
    """Return a checksum as RocksDB stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class ChangeRecord(NamedTuple):
    """A change in a log. ``end``: of a removed range, from ``key`` on. ``value``: None for a removal."""

    family: int
    key: bytes
    value: bytes | None
    end: bytes | None


def changes_of(record: bytes) -> Iterator[ChangeRecord]:
    """Yield the changes of one batch in a log. Raise :class:`ValueError` for a kind that the worker never writes."""
    reader = _Edit(record)
    reader.skip_bytes(_BATCH_HEAD.size)
    while reader.more:
        kind = reader.byte()
        if kind not in _CHANGES:
            raise ValueError(f"a change of kind {kind}")
        family = reader.number() if kind in _WITH_FAMILY else 0
        key = reader.string()
        other = reader.string() if _CHANGES[kind] != _REMOVAL else None
        if _CHANGES[kind] == _RANGE:
            yield ChangeRecord(family, key, None, other)
        elif kind not in _NO_CHANGES:
            yield ChangeRecord(family, key, other, None)


_PUT, _REMOVAL, _RANGE = range(3)
_CHANGES: Final = {1: _PUT, 5: _PUT, 0: _REMOVAL, 4: _REMOVAL, 15: _RANGE, 14: _RANGE, 3: _REMOVAL}
"""The kinds of changes; 3 is a remark."""
_WITH_FAMILY: Final = {4, 5, 14}
_NO_CHANGES: Final = {3}


# --- the manifest -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Manifest:
    """The logs of a manifest. ``torn_at``: where its structure ends too early."""

    first_log: int = 0
    """The oldest log that is needed."""
    last_change: int = 0
    """The number of the last change when it was written."""
    families: dict[int, str] = field(default_factory=dict)
    """The names of the column families, by the numbers that logs have for them."""
    tables: set[int] = field(default_factory=set)
    """The numbers of the tables."""
    removed: set[int] = field(default_factory=set)
    """The numbers of tables that were rewritten or emptied since: their files are removed a little later."""
    torn_at: int | None = None


def read_manifest(path: Path) -> Manifest:
    """Return the content of a manifest, as far as it can be read."""
    manifest = Manifest()
    try:
        for record in records(path):
            _Edit(record).apply(manifest)
    except TornError as torn:
        manifest.torn_at = torn.at
    return manifest


class _Edit:
    """One record of a manifest: fields with a tag each. Unknown ones end it, because their length is not known."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._family = 0

    def apply(self, manifest: Manifest) -> None:
        """Take over the fields that matter."""
        try:
            while self._at < len(self._data):
                self._field(manifest)
        except (LookupError, UnicodeDecodeError):
            return  # a field of a later version of RocksDB

    def _field(self, manifest: Manifest) -> None:
        tag = self.number()
        if tag == _LAST_CHANGE:
            manifest.last_change = max(manifest.last_change, self.number())
        elif tag == _FIRST_LOG:
            manifest.first_log = max(manifest.first_log, self.number())
        elif tag == _FAMILY:
            self._family = self.number()
        elif tag == _NEW_FAMILY:
            manifest.families[self._family] = self.string().decode()
        elif tag == _REMOVED_TABLE:
            self.number()
            number = self.number()
            manifest.tables.discard(number)
            manifest.removed.add(number)
        elif tag == _NEW_TABLE:
            self.number()
            manifest.tables.add(self.number())
            self._skip("nssnn1")
        elif tag & _SKIPPABLE:
            self._skip("s")
        else:
            self._skip(_FIELDS[tag])

    def _skip(self, form: str) -> None:
        for kind in form:
            if kind == "n":
                self.number()
            elif kind == "s":
                self.string()
            else:
                self._skip_tagged(end=int(kind))

    def _skip_tagged(self, end: int) -> None:
        """Skip strings with a tag each, up to the tag ``end``."""
        while self.number() != end:
            self._skip("s")

    @property
    def more(self) -> bool:
        """Whether there is more to read."""
        return self._at < len(self._data)

    def byte(self) -> int:
        """Read one byte."""
        self._at += 1
        return self._data[self._at - 1]

    def skip_bytes(self, count: int) -> None:
        """Skip some bytes."""
        self._at += count

    def string(self) -> bytes:
        """Read a string with its length in front."""
        length = self.number()
        self._at += length
        if self._at > len(self._data):
            raise IndexError(f"a string of {length} bytes is too long")
        return self._data[self._at - length : self._at]

    def number(self) -> int:
        """Read a number in the variable form."""
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value


_LAST_CHANGE, _REMOVED_TABLE, _FIRST_LOG, _NEW_TABLE, _FAMILY, _NEW_FAMILY = 4, 6, 10, 103, 200, 201
_SKIPPABLE: Final = 1 << 13
_FIELDS: Final = {
    1: "s",  # comparator
    2: "n",  # log number of the family
    3: "n",  # next file number
    5: "ns",  # compaction cursor
    9: "n",  # previous log number
    202: "",  # dropped family
    203: "n",  # highest family
    300: "n",  # rest of an atomic group
    400: "nnnss0",  # new blob file
    401: "nnn0",  # garbage in a blob file
}
"""Fields that are skipped: numbers (n), strings (s), and tagged strings up to an end tag (a digit)."""


# --- the logs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileDamage:
    """The damage of a file. ``harmless``: a crash leaves it so, and opening the database removes it."""

    file: Path
    text: str
    harmless: bool = False


def overlooked_damage(path: Path) -> Iterator[FileDamage]:
    """Yield what RocksDB would overlook in the files of a database."""
    manifest_path = manifest_of(path)
    if manifest_path is None:
        return  # RocksDB names it
    manifest = read_manifest(manifest_path)
    if manifest.torn_at is not None:
        yield FileDamage(
            manifest_path, f"ends too early, at byte {manifest.torn_at:,}: tables that were written later may be missing"
        )
    logs = logs_of(path, manifest.first_log)
    if not logs:
        yield FileDamage(path, "there is no log: what was written to it is lost")
    yield from _gaps(logs, manifest.last_change)
    yield from _unknown_tables(path, manifest, logs)


def manifest_of(path: Path) -> Path | None:
    """Return the manifest that ``CURRENT`` names, or else the newest one; None if there is none."""
    with suppress(OSError, ValueError):
        named = path / (path / "CURRENT").read_text().strip()
        if named.is_file():
            return named
    return max(path.glob("MANIFEST-*"), default=None)


def logs_of(path: Path, first: int) -> list[Path]:
    """Return the logs from number ``first`` on, in order."""
    return sorted(log for log in path.glob("*.log") if log.stem.isdigit() and int(log.stem) >= first)


def _unknown_tables(path: Path, manifest: Manifest, logs: list[Path]) -> Iterator[FileDamage]:
    """Yield tables that the manifest does not name and whose messages are in no log."""
    named = manifest.tables | manifest.removed
    unknown = [table for table in path.glob("*.sst") if table.stem.isdigit() and int(table.stem) not in named]
    if unknown and not any(log.stat().st_size for log in logs):
        newest = max(unknown)
        text = (
            "is not in the manifest, and no log has what is in it: the manifest may have lost its end. A crash while "
            "tables are rewritten leaves this, too; if there is no other finding, the next start removes it"
        )
        yield FileDamage(newest, text)


def _gaps(logs: list[Path], last: int) -> Iterator[FileDamage]:
    """Yield where the logs end too early, or do not follow one another. ``last``: the last change that needs no log."""
    expected: int | None = None
    for log in logs:
        try:
            for number, count in _batches(log):
                if number != expected if expected is not None else number > last + 1:
                    missing = number - (last + 1 if expected is None else expected)
                    yield FileDamage(log, f"{missing:,} changes before change {number:,} are missing")
                expected = number + count
        except TornError as torn:
            what = "ends in the middle of a record" if torn.at_end else "is damaged"
            text = f"{what}, at byte {torn.at:,}: what was written there and behind it is lost"
            yield FileDamage(log, text, harmless=torn.at_end and log == logs[-1])
        except error:
            yield FileDamage(log, "has a record that is too short")


def _batches(log: Path) -> Iterator[tuple[int, int]]:
    for record in records(log, _BATCH_HEAD.size):
        number, count = _BATCH_HEAD.unpack(record)
        yield number, count
