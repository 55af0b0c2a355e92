"""``fila-cluster outbox``: what is wrong with a URL or a database is one line that says what to do."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from fila_cluster.cli.root import root


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(root, ["outbox", *arguments])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize("command", ["init", "status", "relay"])
@pytest.mark.parametrize(
    "url", ["", "orders", "postgresql://app:secret@host:port/orders", "postgresql+nothing://host/orders"]
)
def test_what_is_no_url(command: str, url: str):
    assert "write postgresql://USER:PASSWORD@HOST/NAME or sqlite:///FILE" in refusal(command, "--url", url)


def test_another_database():
    assert "works with PostgreSQL and SQLite, not with mysql" in refusal("status", "--url", "mysql://app:secret@host/orders")


@pytest.mark.parametrize("command", ["status", "relay"])
def test_a_database_without_the_table(command: str, tmp_path: Path):
    assert "create it with `fila-cluster outbox init --url URL`" in refusal(command, "--url", f"sqlite:///{tmp_path}/app.db")
