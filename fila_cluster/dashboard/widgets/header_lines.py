"""Headers as people type them."""


def read_headers(text: str) -> dict[str, str]:
    """Return the headers in lines of ``name=value``. :class:`ValueError` names a line that is no header."""
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines:
        if "=" not in line:
            raise ValueError(f"{line!r} is no header: write it as name=value")
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
