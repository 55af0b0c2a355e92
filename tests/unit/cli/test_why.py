"""``fila-cluster why``."""

import json

import pytest
from click.testing import CliRunner

from fila_cluster.cli.root import root
from fila_cluster.errors import MessageNotFoundError
from fila_proto_zmq.commands import Explain, Explained, Reason
from fila_proto_zmq.ids import format_id, high_half, low_half
from tests.unit.client.peer import BORN_MS, answering, broker

PARTS = high_half(BORN_MS, 3), low_half(9)
ID = format_id(*PARTS)
TOLD = Explained(
    "pending",
    [
        Reason(
            "throttled",
            "throttled by provider:acme: 0.0 of 10 tokens, 5/s, the next one in 0.2 s",
            BORN_MS + 200,
            {"tokens": 0.0},
        ),
        Reason("behind", "4 messages go before it in its fairness key '[bold]'", 0, {"ahead": 4}),
    ],
    4,
)


def run(*arguments, answer=TOLD):
    with broker(answering(Explain=answer)) as peer:
        result = CliRunner().invoke(root, ["--endpoint", peer.endpoint, *arguments])
        return result.exit_code, result.stdout, result.stderr, [(sent.key, sent.command) for sent in peer.seen[1:]]


@pytest.mark.usefixtures("terminal")
def test_for_people():
    code, output, errors, seen = run("why", "orders", "--id", ID)
    assert (code, errors, seen) == (0, "", [("orders", Explain(PARTS))])
    assert output.splitlines()[0] == f"{ID}: pending, behind 4 of its key"
    assert max(map(len, output.splitlines())) <= 80
    assert output.index("throttled  ") < output.index("behind  ")
    assert "'[bold]'" in output


def test_a_key_and_a_queue():
    _, output, _, seen = run("why", "orders", "--key", "acme")
    assert (seen, output.split(":")[0]) == ([("orders", Explain(None, "acme"))], "acme")
    _, output, _, seen = run("why", "orders")
    assert (seen, output.split(":")[0]) == ([("orders", Explain())], "orders")


def test_json():
    code, output, _, _ = run("--json", "why", "orders")
    assert code == 0
    assert json.loads(output) == {
        "state": "pending",
        "reasons": [
            {
                "code": "throttled",
                "text": "throttled by provider:acme: 0.0 of 10 tokens, 5/s, the next one in 0.2 s",
                "until": "2023-11-14T22:13:20.200000+00:00",
                "details": {"tokens": 0.0},
            },
            {
                "code": "behind",
                "text": "4 messages go before it in its fairness key '[bold]'",
                "until": None,
                "details": {"ahead": 4},
            },
        ],
        "position": 4,
        "estimated_delivery_at": None,
    }


def test_a_message_that_is_gone_is_one_line():
    code, output, errors, _ = run("why", "orders", "--id", ID, answer=MessageNotFoundError("no message there"))
    assert (code, output, errors) == (1, "", "Error: no message there\n")


def test_both_is_too_much():
    code, _, errors, seen = run("why", "orders", "--id", ID, "--key", "acme")
    assert (code, seen) == (2, [])
    assert "--id or --key, not both" in errors


def test_an_id_that_is_none():
    code, _, errors, seen = run("why", "orders", "--id", "5")
    assert (code, seen) == (1, [])
    assert "'5' is not a message id" in errors
