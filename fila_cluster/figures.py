"""Numbers, sizes and ages as people read them."""

from collections.abc import Iterable


def counted(number: int) -> str:
    """A number for people: 1,234,567."""
    return f"{number:,}"


def sized(number_bytes: int) -> str:
    """A size for people."""
    size = float(number_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def aged(seconds: float) -> str:
    """A duration for people."""
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.1f} s"


def ranged(numbers: Iterable[int]) -> str:
    """Numbers with runs shortened: 0–3, 7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("–".join(map(str, run)) for run in runs)
