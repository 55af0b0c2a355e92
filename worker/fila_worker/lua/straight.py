"""Scripts whose text shows that they cannot run long, and scripts whose decisions can be recalled.

A script is *straight* if its text has no loop, no function but the hooks themselves and no way to call those, only library
functions from a short list, and few of the operators that can cost more than some nanoseconds. Then its text bounds its runs,
as long as its strings are short. Straight scripts run without the count hook, a quarter of the cost of a usual run: only in
little memory, with short headers, and the clock is read every few messages. A script that needs more is watched from then on.

The check reads words and signs wherever they are, in comments and strings, too. In doubt the hook stays: text that the check
can't read does not pass (escapes, long brackets, indexes other than names or literals). Rejected: a proof on bytecode. It
would pass more scripts, and tie us to one release of Lua.

A straight script is *pure* if its decision depends on a message's headers and the runtime config alone. Most policies are
like that, and headers repeat: a tenant, a plan, a provider. Then a decision is recalled for a tenth of the cost of a run
(:mod:`~fila_worker.lua.recall`). The text of a pure script assigns to no fields, and only to names that it declares;
:meth:`LuaState.variables` returns which of these names are variables of the file. The sandbox also detects writes to globals:
a name may be local in one block and global in another. Strings and comments are cut out first. That is exact, because
straight scripts have neither escapes nor long brackets.
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
    "(": 60, "{": 20, "[": 40, ":": 20, "<": 10, ">": 10, "..": 40, "==": 40, "~": 20, "+": 20, "-": 100, "*": 20, "/": 20,
    "%": 40, "^": 10, "&": 10, "|": 10,
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


_HIDDEN: Final = re.compile(r"""--[^\n]*|"[^"\n]*"|'[^'\n]*'""")
_EQUALS: Final = re.compile(r"(?<![=~<>])=(?!=)")
_LOCAL: Final = re.compile(r"\blocal\s+([A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)", re.ASCII)
_DECLARED: Final = re.compile(_LOCAL.pattern + r"\s*$", re.ASCII)
_NAME: Final = re.compile(r"(?:^|[^\w\s.,:]|[\w)\]]\s)\s*([A-Za-z_]\w*)\s*$", re.ASCII)


def is_pure_text(script: str) -> bool:
    """Return whether a straight script's text has no randomness, and assigns to local variables only."""
    code = _HIDDEN.sub(_blank, script)
    try:
        assigned = _assigned(code)
    except ValueError:
        return False
    return "random" not in code and assigned <= _locals(code)


def assigned_names(script: str) -> set[str]:
    """Return the names that a pure text assigns to, except for new variables."""
    return _assigned(_HIDDEN.sub(_blank, script))


def _assigned(code: str) -> set[str]:
    names = set()
    for equals in _EQUALS.finditer(code):
        before = code[: equals.start()]
        if before.count("{") > before.count("}") or _DECLARED.search(before):
            continue  # a field of a constructor, or a new variable
        name = _NAME.search(before)
        if name is None:
            raise ValueError(f"an assignment to something other than a name, behind {before[-40:]!r}")
        names.add(name[1])
    return names


def _locals(code: str) -> set[str]:
    return {name.strip() for names in _LOCAL.findall(code) for name in names.split(",")}


def _blank(hidden: re.Match[str]) -> str:
    return " " if hidden[0].startswith("--") else '""'
