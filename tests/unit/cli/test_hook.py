"""``fila-cluster hook test``: a script on one message, without a broker."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fila_cluster.cli.root import root

POLICY = """
function on_enqueue(msg)
  return { fairness_key = msg.headers.tenant, weight = tonumber(fila.get("weight")), cost = msg.payload_size / 1000, priority = 0.5 }
end
function on_failure(msg)
  return { action = msg.error == "poison" and "dlq" or "retry", delay_ms = 100 * msg.attempts }
end
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(root, list(map(str, arguments)))


def told(*arguments: object) -> Any:
    result = run("--json", "hook", "test", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def error(*arguments: object, code: int = 1) -> str:
    result = run("hook", "test", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    if code == 1:
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1
    return result.stderr


def test_both_hooks_of_a_file(tmp_path: Path):
    file = tmp_path / "policy.lua"
    file.write_text(POLICY)
    answer = told(
        file, "--header", "tenant=acme", "--config", "weight=3", "--payload-size", 1500, "--error", "poison", "--attempts", 4
    )
    assert answer["on_enqueue"]["decision"] == {
        "fairness_key": "acme", "weight": 3, "throttle_keys": None, "priority": None, "cost": 1.5, "delay_ms": None,
    }  # fmt: skip
    assert answer["on_failure"]["decision"] == {"action": "dlq", "delay_ms": 400}
    for cost in answer.values():
        assert 5 < cost["instructions"] < 200
        assert cost["microseconds"] > 0
        assert cost["percent_of_time_limit"] == pytest.approx(cost["microseconds"] / 100, abs=0.001)


def test_the_text_itself_for_people():
    result = run("hook", "test", POLICY, "--header", "tenant=[bold]acme[/]")
    assert (result.exit_code, result.stderr) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.strip()}
    assert rows["fairness_key"] == ["[bold]acme[/]"]
    assert rows["priority"] == ["–", "as", "enqueued;", "else", "0"]
    assert rows["action"] == ["retry"]
    assert result.stdout.count("% of the time limit") == 2


def test_one_hook_only():
    assert told("function on_failure(msg) return { delay_ms = 5 } end").keys() == {"on_failure"}
    script = "function on_enqueue(msg) return { fairness_key = msg.queue, throttle_keys = {} } end"
    assert told(script, "--queue", "orders")["on_enqueue"]["decision"]["fairness_key"] == "orders"
    assert told(script)["on_enqueue"]["decision"]["throttle_keys"] == []


def test_what_on_failure_is_given():
    script = "function on_failure(msg) return { delay_ms = #msg.headers.a + #msg.fairness_key * 10 + #msg.id * 100 } end"
    assert told(script, "--header", "a=xy", "--key", "acme")["on_failure"]["decision"]["delay_ms"] == 3642


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("function on_enqueue(msg) return {", "on_enqueue:1: unexpected symbol near <eof>"),
        ("function on_failure(msg) retrun 1 end", "on_failure:1: "),
        ("local x = 1", "the script defines neither on_enqueue(msg) nor on_failure(msg)"),
        ("function on_enqueue(msg)\n  error('no\\nway')\nend", "on_enqueue:2: no way"),
        ("function on_enqueue(msg) while true do end end", "on_enqueue:1: ran for more than 10 ms"),
        ("function on_enqueue(msg) return 5 end", "a hook returns a table or nil, not a number"),
        ("while true do end function on_enqueue() end", "ran for more than 10 ms"),
        ("function on_enqueue() end function on_failure() error('x') end", "on_failure:1: x"),
    ],
)
def test_failures_are_one_line(script: str, reason: str):
    assert reason in error(script)


def test_misuse():
    assert "name=value" in error("function on_enqueue() end", "--header", "tenant", code=2)
    assert "there is no such file" in error("missing.lua", code=2)
    assert "--attempts" in error("function on_enqueue() end", "--attempts", 0, code=2)
