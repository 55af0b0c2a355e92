"""Random numbers out of bytes that a coverage-guided fuzzer chose."""

from random import Random


class BytesRandom(Random):
    """Deals out ``data``; when it is used up, everything is 0."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data = data
        self._place = 0

    def random(self) -> float:
        return self.getrandbits(16) / (1 << 16)

    def getrandbits(self, k: int, /) -> int:
        """``k`` bits; few bits take few bytes, so that a changed byte changes one decision."""
        size = (k + 7) // 8
        piece = self._data[self._place : self._place + size]
        self._place += size
        return int.from_bytes(piece.ljust(size, b"\0"), "big") & ((1 << k) - 1)
