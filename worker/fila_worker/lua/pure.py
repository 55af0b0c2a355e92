"""Scripts that decide by a message's headers and the runtime config alone: the same message, the same decision.

Most policies are like that, and headers repeat: a tenant, a plan, a provider. Then a decision can be recalled, for a tenth of
what the run costs (:mod:`~fila_worker.lua.recall`).

A straight script is *pure* if it changes nothing that outlives a run. Its text shows that it assigns to no fields, and only
to names that it declares. :meth:`LuaState.variables` knows which of these names are variables of the file. The sandbox
notices if a global is written nevertheless: a name may be local in one block and global in another. Strings and comments are
cut out first. That is exact, because straight scripts have neither escapes nor long brackets.
"""

import re
from typing import Final

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
            raise ValueError(f"an assignment to what is no plain name, behind {before[-40:]!r}")
        names.add(name[1])
    return names


def _locals(code: str) -> set[str]:
    return {name.strip() for names in _LOCAL.findall(code) for name in names.split(",")}


def _blank(hidden: re.Match[str]) -> str:
    return " " if hidden[0].startswith("--") else '""'
