"""``fila-cluster schedule``: what people see of schedules."""

import pytest
from click.testing import CliRunner

from fila_cluster.cli.root import root
from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import Enqueue, Reply, ScheduleFound, ScheduleList, ScheduleView
from fila_proto_zmq.errors import QueueNotFoundError
from fila_proto_zmq.record import seal_envelope
from tests.unit.client.peer import answering, broker

NOW_MS = 1_800_000_000_000
MISSING = to_fault(QueueNotFoundError("no queue 'reports-of-all': create it with `queue create reports-of-all`"))


def view(name: str, queue: str = "reports", **fields: object) -> ScheduleView:
    whole = {"cron": "0 3 * * MON-FRI", "every_ms": 0, "timezone": "Europe/Lisbon", "next_at_ms": NOW_MS} | fields
    return ScheduleView(name, queue, catch_up="once", jitter_ms=0, created_ms=NOW_MS, shard=0, **whole)  # type: ignore[arg-type]


def shown(*arguments: str, **replies: Reply) -> list[str]:
    with broker(answering(**replies)) as peer:
        result = CliRunner().invoke(root, ["--endpoint", peer.endpoint, "schedule", *arguments])
    assert result.exit_code == 0, result.output
    return [line.rstrip() for line in result.stdout.splitlines()]


@pytest.mark.usefixtures("terminal")
def test_a_list_fits_a_terminal_of_80_columns_and_names_what_was_left_out():
    schedules = [
        view("nightly", fired=1234),
        view("weekly", "reports-of-all", skipped=2, failed=5, fault=MISSING),
        view("z", skipped=1),
    ]
    heading, *rows = shown("list", ListSchedules=ScheduleList(schedules))
    assert heading.split() == ["name", "queue", "when", "next", "(UTC)", "fired"]
    assert " ".join(rows[0].split()) == "nightly reports 0 3 * * MON-FRI Europe/Lisbon 01-15 08:00:00 1,234"
    assert max(map(len, rows)) <= 80
    assert " ".join(rows[3:]) == f"weekly: 2 skipped; 5 failed; QUEUE_NOT_FOUND: {MISSING.text} z: 1 skipped"


def test_a_schedule_is_shown_with_its_message():
    message = Enqueue([seal_envelope(b"all tenants", {"kind": "daily"})], "acme", max_attempts=3)
    rows = shown("get", "nightly", GetSchedule=ScheduleFound(view("nightly", enqueue=message)))
    assert {"payload                 11 bytes", "fairness key            acme", "max attempts            3"} < set(rows)
