"""The rows of the page of templates."""

from fila_cluster.client.calls.queues import QueueOptions
from fila_cluster.ops.analysis.rows import QueueRow
from fila_cluster.ops.dashboard.templates import rows


def queue(name: str) -> QueueRow:
    return QueueRow(name, "idle", 0, name.endswith(".dlq"))


def test_a_queue_counts_for_the_pattern_that_would_make_it() -> None:
    templates: dict[str, QueueOptions] = {"*": {}, "mail-*": {}, "mail-urgent-*": {}, "mail-urgent-one": {}}
    names = ["mail-a", "mail-urgent-a", "mail-urgent-b", "mail-urgent-one", "other", "mail-a.dlq"]
    counts = {row["pattern"]: row["queues"] for row in rows(templates, map(queue, names))}
    assert counts == {"*": 1, "mail-*": 1, "mail-urgent-*": 2, "mail-urgent-one": 1}


def test_options_that_are_set_are_named() -> None:
    [row] = rows(
        {"a*": {"max_attempts": 5, "idle_expiry": 7200.0, "on_failure": "x = 1", "lua_timeout": 0.02, "lua_memory_limit": 2**20}},
        [],
    )  # fmt: skip
    assert row["options"] == (
        "max attempts 5 · idle expiry 2 h · on_failure 5 B of Lua · time limit of hooks 20 ms · memory limit of hooks 1 MiB"
    )
    assert row["href"] == "/queues?search=a"


def test_a_template_without_options_has_the_defaults() -> None:
    assert [row["options"] for row in rows({"a": {}}, [])] == ["all defaults"]
