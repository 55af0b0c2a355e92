"""Patterns: ordinary ones on ordinary headers pass, and nothing that passes takes long."""

import time

import lupa.lua54 as lupa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fila_worker.core.hooks import EnqueueDecision
from tests.unit.worker.lua.scripts import compiled, decided, decisions, hook

FIND = """
  local verb = string[msg.headers.verb]
  if msg.headers.verb == "gmatch" then
    local count = 0
    for _ in verb(msg.headers.subject, msg.headers.pattern) do count = count + 1 end
    return { fairness_key = "found " .. count }
  end
  return { fairness_key = "found " .. tostring((verb(msg.headers.subject, msg.headers.pattern, "."))) }
"""

WORDS = "alpha beta-gamma delta_epsilon 12345 zeta/eta.theta?iota=kappa&lambda=mu, nu; xi: omicron <pi@rho.example> " * 8
URL = "https://shop.example.com/api/v2/customers/8431/orders/99812?expand=items,shipping&locale=de_DE#top"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36"


@pytest.mark.parametrize(
    ("pattern", "subject", "found"),
    [
        ("^(%w+)%-(%w+)%-(%w+)$", "tenant-region-shard" + "9" * 200, "tenant"),
        ("^%s*(.-)%s*$", "   some text with blanks in it, as they come   ", "some text with blanks in it, as they come"),
        ("^%s*(.-)%s*$", WORDS, WORDS.strip()),
        ("(%w+)=(%w+)", WORDS, "iota"),
        ("^(.-)@(.+)$", "somebody.with.a.name@mail.example.com", "somebody.with.a.name"),
        ("^https?://([^/]+)(/?.*)$", URL, "shop.example.com"),
        ("[?&]locale=([%w_]+)", URL, "de_DE"),
        ("/customers/(%d+)/", URL, "8431"),
        ("^%x%x%-(%x+)%-(%x+)%-%x%x$", TRACE, "4bf92f3577b34da6a3ce929d0e0e4736"),
        ("^(%d%d%d%d)-(%d%d)-(%d%d)T(%d%d):(%d%d):(%d%d)%.?%d*Z$", "2031-05-17T09:08:07.123456Z", "2031"),
        ("Chrome/(%d+)%.", AGENT, "126"),
        ("%((.-)%)", AGENT, "X11; Linux x86_64"),
        ("%b()", AGENT, "(X11; Linux x86_64)"),
        ("%f[%a]Gecko%f[%A]", AGENT, "Gecko"),
        ("timeout", "connect timeout after 30 s", "timeout"),
        ("[Tt]imed? ?out", WORDS + "it timed out", "timed out"),
        ("status (5%d%d)", WORDS * 5 + "status 503", "503"),
        (".*%.(%w+)$", "a/long/path/to/some.archive.tar.gz", "gz"),
        ("^[%w_.-]+$", "an.ordinary-name_42", "an.ordinary-name_42"),
        ("^(%a+)[%s,;]+(%a+)", "one,   two", "one"),
        ("(%d+)%D+(%d+)%D+(%d+)", "v1.22.333", "1"),
        ("^(..)(..)(..)$", "abcdef", "ab"),
        ("(.)%1", "hello", "l"),
        ("^%[(%w+)%]", "[error] it broke", "error"),
        ("[]]", "a]b", "]"),
        ("[^]]+", "]]ab]", "ab"),
        ("[a-]+", "b-a-", "-a-"),
        ("a-b", "aaab", "aaab"),
        ("a$", "ba", "a"),
        ("a$b", "a$b", "a$b"),
        ("a^b", "a^b", "a^b"),
        ("%$%^", "$^", "$^"),
        ("", "abc", ""),
        ("()b", "ab", "2"),
        ("x?y?z?", "xz", "xz"),
    ],
)
def test_ordinary_patterns_pass(pattern: str, subject: str, found: str):
    headers = {"verb": "match", "subject": subject, "pattern": pattern}
    body = "local found = string.match(msg.headers.subject, msg.headers.pattern) return { fairness_key = '+' .. found }"
    assert decided(body, headers).fairness_key == "+" + found


def test_a_large_header_is_split():
    words = ",".join(f"word{number}" for number in range(5000))
    assert (
        decided("local n = 0 for w in msg.headers.w:gmatch('[^,]+') do n = n + 1 end return { weight = n }", {"w": words})[1]
        == 5000
    )


def test_a_caret_in_gmatch_is_a_character():
    assert decided("for x in ('a^a'):gmatch('^a') do return { fairness_key = x } end").fairness_key == "^a"


def test_a_limit_may_be_caught_when_a_pattern_is_refused():
    body = "local ok, text = pcall(string.find, ('a'):rep(5000), '.-.-.-x') return { weight = ok and 1 or 2 }"
    assert decided(body).weight == 2


_class = st.sampled_from(["a", "b", ".", "%w", "[ab]", "[^b]", "%a", "x", "[a-c]", "%d"])
_item = st.tuples(_class, st.sampled_from(["", "", "*", "+", "-", "?"])).map("".join)
_odd = st.sampled_from(["%b()", "%f[a]", "()", "(", ")", "%1", "$", "[", "%", "^"])
_patterns = st.lists(st.one_of(_item, _item, _item, _odd), max_size=9).map("".join)
_subjects = st.one_of(
    st.tuples(st.text("ab(", max_size=6), st.integers(0, 4000), st.text("abx1)", max_size=6)).map(
        lambda s: (s[0] or "a") * s[1] + s[2]
    ),
    st.text("ab(x1)", max_size=200),
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["find", "match", "gsub", "gmatch"]), st.sampled_from(["", "^"]), _patterns, _subjects)
def test_what_passes_is_quick_and_right(verb: str, anchor: str, pattern: str, subject: str):
    headers = {"verb": verb, "pattern": anchor + pattern, "subject": subject}
    body = FIND.replace(', "."', "") if verb in {"find", "match"} else FIND
    hooks = compiled(hook(body), timeout_ms=20)
    started = time.thread_time()
    (outcome,) = decisions(hooks, headers)
    assert time.thread_time() - started < 0.5
    if isinstance(outcome, EnqueueDecision):
        assert outcome.fairness_key == _unguarded(body, headers)


def _unguarded(body: str, headers: dict[str, str]) -> str | None:
    """What Lua does by itself."""
    function = lupa.LuaRuntime().eval(f"function(msg) {body} end")
    key = function({"headers": headers})["fairness_key"]
    return key if len(key.encode()) <= 1024 else None
