"""Which messages came, in one bit each."""

from collections.abc import Iterable


class Seen:
    """The numbers that came from one producer. Takes an eighth of the highest number in bytes."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def add(self, number: int) -> bool:
        """Note a number; return whether it is new."""
        place, bit = number >> 3, 1 << (number & 7)
        if place >= len(self._bits):
            self._bits.extend(bytes(max(place + 1, 2 * len(self._bits)) - len(self._bits)))
        if self._bits[place] & bit:
            return False
        self._bits[place] |= bit
        return True

    def to_bytes(self) -> bytes:
        """Return the bitmap, lowest bit first."""
        return bytes(self._bits)


def joined(bitmaps: Iterable[bytes]) -> int:
    """Return the numbers that any bitmap has, as the bits of one integer."""
    union = 0
    for bitmap in bitmaps:
        union |= int.from_bytes(bitmap, "little")
    return union


def missing(union: int, sent: int) -> int:
    """Return how many of the numbers below ``sent`` are not in a union."""
    return sent - (union & ((1 << sent) - 1)).bit_count()


def surplus(union: int, sent: int) -> int:
    """Return how many numbers of a union are not below ``sent``."""
    return (union >> sent).bit_count()
