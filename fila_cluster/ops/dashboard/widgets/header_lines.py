"""Headers as people type them."""

from collections.abc import Mapping


def read_headers(text: str) -> dict[str, str]:
    """Return the headers in lines of ``name=value``. :class:`ValueError` names a line that is no header."""
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines:
        if "=" not in line:
            raise ValueError(f"{line!r} is no header: write it as name=value")
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}


def written_headers(headers: Mapping[str, str]) -> str:
    """Return headers as lines for :func:`read_headers`."""
    return "\n".join(f"{name}={value}" for name, value in headers.items())
