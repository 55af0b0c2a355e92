"""Scripts whose text shows that they cannot run long: they run without the count hook, a quarter of the cost of a usual run.

A script is *straight* if its text has no loop, no function but the hooks themselves and no way to call those, only library
functions from a short list, and few of the operators that can cost more than some nanoseconds. What it can do in a run is
then bounded by its text, as long as its strings are short. So straight scripts run unwatched only in little memory, with
short headers, and the clock is read every few messages. A script that needs more is watched from then on, like all others.

The check reads words and signs wherever they are, comments and strings included, and in doubt the hook stays: text that the
check could not read does not pass (escapes, long brackets, indexes that are no plain names or literals). Rejected: a proof on
bytecode. It would pass more scripts, and tie us to one release of Lua.
"""

import re
from collections import Counter
from typing import Final

UNWATCHED_HEADERS_BYTES: Final = 16 * 1024
"""Packed headers of a batch that runs unwatched."""

UNWATCHED_TIMEOUT_MS_MIN: Final = 5
"""At worst, a straight script takes a few milliseconds: a shorter limit needs the hook."""

TEXT_MAX: Final = 4096
_SIGNS_MAX: Final = {
    "(": 60, "{": 20, "[": 40, ":": 20, "<": 10, ">": 10, "..": 40, "==": 40, "~": 20, "+": 20, "-": 100, "*": 20, "/": 20, "%": 40,
    "^": 10, "&": 10, "|": 10,
}  # fmt: skip

ALLOWED: Final = frozenset(
    [
        "_VERSION",
        "abs",
        "assert",
        "byte",
        "ceil",
        "error",
        "fila",
        "find",
        "floor",
        "fmod",
        "get",
        "huge",
        "len",
        "lower",
        "match",
        "math",
        "max",
        "maxinteger",
        "min",
        "mininteger",
        "pi",
        "random",
        "string",
        "sub",
        "tointeger",
        "tonumber",
        "tostring",
        "type",
        "upper",
    ]
)
"""Names in the sandbox that a straight script may use: these functions are quick, or check the time first."""

REFUSED: Final = frozenset(
    [
        "_G",
        "acos",
        "asin",
        "atan",
        "char",
        "charpattern",
        "codepoint",
        "codes",
        "concat",
        "cos",
        "deg",
        "exp",
        "format",
        "getmetatable",
        "gmatch",
        "gsub",
        "insert",
        "ipairs",
        "log",
        "modf",
        "move",
        "next",
        "offset",
        "pack",
        "packsize",
        "pairs",
        "pcall",
        "rad",
        "randomseed",
        "rawequal",
        "rawget",
        "rawlen",
        "rawset",
        "remove",
        "rep",
        "reverse",
        "select",
        "setmetatable",
        "sin",
        "sort",
        "sqrt",
        "table",
        "tan",
        "ult",
        "unpack",
        "utf8",
        "xpcall",
    ]
)
"""The other names in the sandbox."""

_KEYWORDS: Final = frozenset(["_ENV", "for", "goto", "repeat", "until", "while"])
_HOOKS: Final = ("on_enqueue", "on_failure")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEFINITION: Final = re.compile(r"\bfunction[ ]+(?:on_enqueue|on_failure)[ ]*\(")
_INDEX: Final = re.compile(r"""\[(?:"[^"\n\r]*"|'[^'\n\r]*'|[0-9]+)\]""")
_PRINTED: Final = re.compile(r"[\t\n\r -\[\]-~\u00a0-\U0010ffff]*")
"""No backslash, no control characters."""


def is_straight(script: str) -> bool:
    """Return whether a run of the hooks that ``script`` defines is bounded by its text."""
    if len(script) > TEXT_MAX or not _PRINTED.fullmatch(script):
        return False
    if any(script.count(sign) > most for sign, most in _SIGNS_MAX.items()):
        return False
    if script.count("[") != len(_INDEX.findall(script)):
        return False
    words = Counter(_WORD.findall(script))
    if not (REFUSED | _KEYWORDS).isdisjoint(words):
        return False
    if max(words[hook] for hook in _HOOKS) > 1:
        return False
    return words["function"] == sum(words[hook] for hook in _HOOKS) == len(_DEFINITION.findall(script))
