"""What errors have in common: their text without what differs from message to message.

One pass over the text with one expression. Numbers that say what kind of error it is stay (``HTTP 500``, ``errno 111``, a leading ``550``);
all others, ids, times, addresses and quoted words become placeholders. Left out: learning patterns from the errors themselves
(Drain and the like), whose groups change while one looks at them.
"""

import re
from functools import lru_cache
from typing import Final

PATTERN_CHARS_MAX: Final = 300
"""Errors that differ later than this are one kind: that is a stack trace. A quarter of a microsecond for each character."""

NO_ERROR: Final = "(no error given)"

_PARTS: Final = {
    "kept": r"^[45]\d\d(?=[ :-])|\b(?:HTTP(?:/\d(?:\.\d)?)?|status(?: code)?|code|errno|error|exit code)[ :=#]{0,3}\d{1,5}\b",
    "id": r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    "time": r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?",
    "address": r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b",
    "hex": r"\b0x[0-9a-f]+\b|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}\b",
    "text": r"(?<!\w)'[^'\n]*'(?!\w)|\"[^\"\n]*\"|`[^`\n]*`",
    "n": r"\d+(?:[.,:]\d+)*",
}

_VARYING: Final = re.compile("|".join(f"(?P<{name}>{part})" for name, part in _PARTS.items()), re.IGNORECASE)


@lru_cache(maxsize=10_000)
def pattern(error: str) -> str:
    """The kind of an error, e.g. ``timeout after <n> s for <text>``."""
    text = " ".join(error[:PATTERN_CHARS_MAX].split())
    if len(error) > PATTERN_CHARS_MAX:
        text = text.rpartition(" ")[0] or text  # half a number is not the number
    return _VARYING.sub(_placeholder, text) or NO_ERROR


def _placeholder(found: re.Match[str]) -> str:
    return found.group() if found.lastgroup == "kept" else f"<{found.lastgroup}>"
