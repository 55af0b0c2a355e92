"""A hook over a batch: any mixture of headers, long batches, failures in between."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fila_worker.core.hooks import NO_CHANGE, RETRY, EnqueueDecision, FailedAttempt, FailureDecision, HookFailed
from fila_worker.lua.headers import BATCH_BYTES, BATCH_MESSAGES, batch_of
from tests.unit.worker.lua.scripts import TENANT, compiled, decision, decisions, hook, pack, settled

ECHO = """
function on_enqueue(msg)
  local names = {}
  for name, value in pairs(msg.headers) do names[#names + 1] = name .. "=" .. value end
  table.sort(names)
  if msg.headers.fail then error("told to", 0) end
  return { fairness_key = "+" .. table.concat(names, "|"), weight = msg.payload_size, priority = tonumber(msg.headers.p) }
end
"""

_texts = st.text(max_size=8)
_headers = st.one_of(
    st.fixed_dictionaries({"tenant": _texts, "plan": _texts}),
    st.dictionaries(st.one_of(st.sampled_from(["tenant", "plan", "p", "fail"]), _texts), _texts, max_size=5),
)


def echoed(headers: dict[str, str], payload_bytes: int) -> EnqueueDecision | HookFailed:
    """What ECHO decides."""
    if "fail" in headers:
        return HookFailed("on_enqueue: told to")
    pairs = sorted((f"{name}={value}".encode() for name, value in headers.items()))
    priority = headers.get("p", "")
    known = priority.isascii() and priority.isdigit() and priority.strip() == priority
    return EnqueueDecision("+" + b"|".join(pairs).decode(), max(1, payload_bytes), None, int(priority) if known else None)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(_headers, st.integers(0, 9)), max_size=40))
def test_any_batch(messages: list[tuple[dict[str, str], int]]):
    hooks = compiled(ECHO, timeout_ms=1000)
    for _ in range(2):  # the second time with what was learnt from the first
        outcomes = hooks.on_enqueue([pack(headers) for headers, _ in messages], [size for _, size in messages], 1000)
        expected = [echoed(*message) for message in messages]
        for outcome, hoped, (headers, _) in zip(outcomes, expected, messages, strict=True):
            if "p" in headers and hoped[-1] is None and isinstance(hoped, EnqueueDecision):
                assert outcome[:2] == hoped[:2]  # Lua may read other numbers than we do
            else:
                assert outcome == hoped


def test_a_batch_of_many_shapes():
    messages = [{f"h{number % 30}": str(number), "tenant": "t"} for number in range(1000)]
    outcomes = decisions(compiled(ECHO), *messages)
    assert outcomes == [echoed(headers, 0) for headers in messages]


@pytest.mark.parametrize("count", [0, 1, BATCH_MESSAGES, BATCH_MESSAGES + 1, 1000])
def test_batches_of_any_length(count: int):
    outcomes = decisions(compiled(TENANT), *[{"tenant": f"t{number}"} for number in range(count)])
    assert [each[0] for each in outcomes] == [f"t{number}" for number in range(count)]


def test_batches_are_cut_by_size():
    packed = [b"x" * (BATCH_BYTES // 2)] * 5 + [b"x" * BATCH_BYTES * 2, b"x"]
    cuts, start = [], 0
    while start < len(packed):
        cuts.append(len(batch_of(packed, start)))
        start += cuts[-1]
    assert cuts == [2, 2, 1, 1, 1]


def test_messages_without_headers():
    hooks = compiled(hook("return { fairness_key = msg.headers.tenant or 'none', weight = msg.payload_size }"))
    outcomes = hooks.on_enqueue([b"", pack({"tenant": "a"}), b"", b"\x80"], [1, 2, 3, 4], 1000)
    assert [each[:2] for each in outcomes] == [("none", 1), ("a", 2), ("none", 3), ("none", 4)]
    assert [each[:2] for each in hooks.on_enqueue([b"", b""], [5, 6], 1000)] == [("none", 5), ("none", 6)]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xc1",
        b"\x80\x80",
        b"\x81\xa1a",
        b"\x81\xa1a\x01",
        b"\x90",
        b"\x81\xa1a\xa1\xff",
        b"\x91" * 5000,
        b"\xdf\xff\xff\xff\xff",
    ],
)
def test_headers_that_are_none_change_nothing(garbage: bytes):
    hooks = compiled(TENANT)
    good = pack({"tenant": "a"})
    outcomes = hooks.on_enqueue([good, garbage, good, garbage, garbage], [0] * 5, 1)
    assert [each[0] for each in outcomes] == ["a", None, "a", None, None]
    assert not hooks.failed, "a producer's fault, not the script's"
    on_failure = compiled(None, "function on_failure(msg) return { action = 'dlq' } end")
    failures = [FailedAttempt(packed, "id", 1, "", "k") for packed in (good, garbage, b"")]
    assert on_failure.on_failure(failures, 1) == [FailureDecision(dead_letter=True), RETRY, FailureDecision(dead_letter=True)]


def test_it_stops_at_the_given_number_of_failures_in_a_row():
    hooks = compiled(hook("if msg.headers.fail then error('x') end return { weight = 1 }"))
    good, bad = {"a": "1"}, {"a": "1", "fail": "1"}
    assert len(decisions(hooks, bad, good, bad, bad, good, bad, bad, bad, good, failures_max=3)) == 8
    assert len(decisions(hooks, good, bad, good, failures_max=1)) == 2
    assert len(decisions(hooks, *[bad] * 500, failures_max=200)) == 200, "counted on over the cuts"
    assert len(decisions(hooks, *[bad] * 5, failures_max=6)) == 5
    assert hooks.failed == 6 + 1 + 200 + 5


def test_fields_that_few_messages_have():
    body = "return { fairness_key = 'k', priority = tonumber(msg.headers.p), cost = tonumber(msg.headers.c) }"
    hooks = compiled(hook(body))
    messages = [{"a": "1"}] * 3 + [{"p": "5"}] + [{"c": "2"}] + [{"a": "1"}] * 3
    expected = [(None, None)] * 3 + [(5, None), (None, 2000)] + [(None, None)] * 3
    for _ in range(3):
        outcomes = decisions(hooks, *messages)
        assert [(each.priority, each.cost_milli) for each in outcomes if isinstance(each, EnqueueDecision)] == expected


def test_failures_and_rare_fields_in_one_batch():
    hooks = compiled(hook("return { weight = 2, delay_ms = tonumber(msg.headers.d), fairness_key = msg.headers.k .. 'x' }"))
    outcomes = decisions(hooks, {"k": "a"}, {"d": "5"}, {"k": "b", "d": "7"}, {"k": "c"})
    assert outcomes[0] == ("ax", 2, None, None, None, None)
    assert isinstance(outcomes[1], HookFailed)
    assert outcomes[2] == ("bx", 2, None, None, None, 7)
    assert outcomes[3] == ("cx", 2, None, None, None, None)


def test_state_between_messages():
    hooks = compiled("local count = 0\n" + hook("count = count + 1 return { weight = count }"))
    assert [each[1] for each in decisions(hooks, *[{}] * 300)] == list(range(1, 301))


def test_odd_header_names():
    names = ['"', "\\", "\n", "a]]b", "$HEADERS", "%s", "\0", "ключ", "end", "h" * 300, ""]
    for name in names:
        hooks = compiled(hook("local n, v = next(msg.headers) return { fairness_key = '+' .. n, weight = tonumber(v) }"))
        for _ in range(2):
            assert [each[:2] for each in decisions(hooks, {name: "3"}, {name: "4"})] == [("+" + name, 3), ("+" + name, 4)]


def test_many_failures_at_once():
    hooks = compiled(None, "function on_failure(msg) return { delay_ms = msg.attempts, action = msg.headers.action } end")
    failures = [
        FailedAttempt(pack({"action": "dlq"}) if number % 2 else b"", "id", number, "e", "k") for number in range(500)
    ]
    outcomes = hooks.on_failure(failures, 3)
    assert outcomes == [FailureDecision(bool(number % 2), number) for number in range(500)]


def test_failed_failures():
    hooks = compiled(None, "function on_failure(msg)\n  if msg.attempts == 2 then error('no') end\nend")
    failures = [FailedAttempt(b"", "id", number, "", "k") for number in (1, 2, 3)]
    assert hooks.on_failure(failures, 3) == [RETRY, HookFailed("on_failure:2: no"), RETRY]
    assert settled(hooks) == RETRY


def test_remembered_decisions_are_bounded():
    hooks = compiled(TENANT)
    for start in range(0, 30_000, 1000):
        decisions(hooks, *[{"tenant": str(number)} for number in range(start, start + 1000)])
    assert len(hooks._decisions) <= 20_000
    assert decision(hooks, {"tenant": "7"}).fairness_key == "7"


def test_no_change_is_one_object():
    assert decision(compiled(hook("return nil"))) == NO_CHANGE


def test_large_returns_are_not_remembered():
    hooks = compiled(hook("return { fairness_key = ('x'):rep(100000) .. msg.headers.n, weight = tonumber(msg.headers.n) }"))
    outcomes = decisions(hooks, *[{"n": str(number)} for number in range(1, 41)])
    assert [each[:2] for each in outcomes] == [(None, number) for number in range(1, 41)], "nor held against the script"
    assert len(hooks._decisions) <= 1
