"""The command, as far as it goes without a cluster."""

import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from fila_cluster.cli.root import root


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, list(arguments))


def test_without_a_terminal_it_says_what_to_do():
    result = run("top")
    assert result.exit_code == 1
    assert result.stderr == "Error: top needs a terminal; `fila-cluster --json top` prints one snapshot instead\n"


@pytest.mark.parametrize(("wrong", "told"), [("1ms", "too often"), ("soon", "soon"), ("-1s", "-1s")])
def test_an_interval_that_will_not_do_is_a_usage_error(wrong: str, told: str):
    result = run("top", "--interval", wrong)
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_queue_that_can_not_be_is_an_error_at_once():
    result = run("--json", "top", "--queue", "a b")
    assert result.exit_code == 1
    assert "bad queue name 'a b'" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--help"], ["top", "--help"], ["top"]])
def test_what_draws_is_loaded_only_to_draw(arguments: list[str]):
    code = f"import sys; from fila_cluster.cli import main; sys.argv[1:] = {arguments}\n"
    code += "try: main()\nexcept SystemExit: print('textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "False"
