"""What the Spark commands refuse before Spark starts, each in one line."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fila_cluster.cli.root import root
from fila_cluster.cli.spark import running
from fila_cluster.cli.spark.pipelines import FORMATS, ROWS_PER_BATCH
from fila_cluster.spark.pipelines import drain, load
from fila_proto_zmq.commands import ClusterStatus, QueueInfo, QueueStats
from fila_proto_zmq.errors import QueueNotFoundError
from tests.unit.client.peer import answering, broker, free_port


@pytest.fixture(autouse=True)
def _spark_could_run(monkeypatch):
    """Whatever this machine has; the tests of what is missing say so."""
    monkeypatch.setattr(running, "what_java_lacks", lambda: None)


@pytest.fixture
def rows(tmp_path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n')
    return file


def run(*arguments: object) -> Result:
    return CliRunner().invoke(root, [*map(str, arguments)])


def refused(*arguments: object) -> str:
    """The one line of a command that fails."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    (line,) = result.stderr.splitlines()
    return line


def misused(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 2
    return result.stderr


def test_the_commands_are_listed():
    text = run("spark", "--help").stdout
    assert all(name in text for name in ("load", "drain", "report", "pip install 'fila-cluster[spark]'"))


@pytest.mark.parametrize("name", ["load", "drain", "report"])
def test_help_needs_no_spark(name):
    code = f"import sys; from fila_cluster.cli import main; sys.argv = ['x', 'spark', '{name}', '--help']\n"
    code += "try: main()\nexcept SystemExit: print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("False\n")


# --- what is missing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [("load", "x.csv", "--queue", "q"), ("drain", "q", "--to", "out"), ("report", "q")],
    ids=lambda given: given[0],
)
def test_without_pyspark_it_says_what_to_install(arguments, monkeypatch):
    monkeypatch.setattr(running, "find_spec", lambda name: None if name == "pyspark" else object())
    assert refused("spark", *arguments) == "Error: pyspark not installed: pip install 'fila-cluster[spark]'"


def test_without_java_it_says_how_to_get_one(monkeypatch):
    monkeypatch.undo()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    line = refused("spark", "report", "q")
    assert "Java 17 or later" in line
    assert "apt-get install" in line


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ('openjdk version "17.0.15" 2025-04-15', None),
        ('openjdk version "25" 2025-09-16', None),
        ('java version "1.8.0_452"', "is Java 8."),
        ('openjdk version "11.0.2"', "is Java 11."),
        ("no idea", "does not show its version."),
    ],
)
def test_java_says_which_it_is(answer, problem, monkeypatch, tmp_path):
    monkeypatch.undo()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    lacking = running.what_java_lacks()
    assert lacking is None if problem is None else problem in str(lacking)


def test_a_java_home_without_java_is_a_missing_java(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert str(tmp_path) in str(running.what_java_lacks())


def test_the_packages_asked_for_are_those_of_the_extra():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    extra = {line.partition(">")[0] for line in project["optional-dependencies"]["spark"]}
    assert set(running._PACKAGES) == extra


# --- load -------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there(tmp_path):
    assert refused("spark", "load", tmp_path / "none.csv", "--queue", "q").startswith(
        f"Error: there is no file at {tmp_path / 'none.csv'}: "
    )


def test_a_format_that_nobody_can_tell(tmp_path):
    (tmp_path / "rows.dat").write_text("x")
    assert refused("spark", "load", tmp_path / "rows.dat", "--queue", "q").endswith("with --format parquet|json|csv|text")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--option", "colour=a"), "--option colour=…: a message has no such option; known: headers, fairness_key, "),
        (("--tenant", "a", "--tenant-pattern", "(a)"), "give --tenant or --tenant-pattern, not both"),
        (("--tenant", "a", "--option", "fairness_key=a"), "leave out --option fairness_key=…"),
        (("--tenant-pattern", "(a)"), "--tenant-pattern is for lines of text, these are json files: use --tenant COLUMN"),
        (("--format", "text", "--tenant-pattern", "a+"), "'a+' has no group: put the tenant's part in parentheses"),
    ],
)
def test_a_mapping_that_cannot_be_meant(arguments, said, rows):
    assert said in refused("spark", "load", rows, "--queue", "q", *arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Missing option '--queue'"),
        (("--queue", "q", "--option", "priority"), "'priority': write it as NAME=COLUMN"),
        (("--queue", "q", "--option", "=a"), "write it as NAME=COLUMN"),
        (("--queue", "q", "--format", "xml"), "'xml' is not one of"),
        (("--queue", "q", "--partitions", "0"), "--partitions"),
        (("--queue", "q", "--dedup-window", "soon"), "'soon' is not a duration"),
    ],
)
def test_a_wrong_use_of_load(arguments, said, rows):
    assert said in misused("spark", "load", rows, *arguments)


def test_an_unknown_queue_is_known_before_spark_starts(rows):
    with broker(answering(GetQueueStats=QueueNotFoundError("no queue 'q'"))) as peer:
        assert refused("--endpoint", peer.endpoint, "spark", "load", rows, "--queue", "q").endswith("or add --create")


# --- drain ------------------------------------------------------------------------------------------------------------


def test_an_output_that_is_a_file(rows):
    assert refused("spark", "drain", "q", "--to", rows).endswith("is a file: name a directory to write to")


def test_an_output_with_something_else_in_it(rows):
    assert "has other things in it (rows.jsonl …)" in refused("spark", "drain", "q", "--to", rows.parent)


def test_an_output_in_another_format(tmp_path):
    (tmp_path / "_spark_metadata").mkdir()
    (tmp_path / "queue=q").mkdir()
    (tmp_path / "queue=q" / "part-00000-x.c000.json").touch()
    assert "is not in parquet, it has part-00000-x.c000.json" in refused("spark", "drain", "q", "--to", tmp_path)


def test_a_wrong_use_of_drain():
    assert "Missing option '--to'" in misused("spark", "drain", "q")
    assert "--limit" in misused("spark", "drain", "q", "--to", "out", "--limit", "0")


# --- report -----------------------------------------------------------------------------------------------------------


def test_a_report_needs_a_directory_that_is_there(tmp_path):
    assert "there is no directory" in refused("spark", "report", "q", "--to", tmp_path / "none" / "r.html")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "http://",
        "ftp://127.0.0.1:21",
        "http://127.0.0.1:many",
        "http://127.0.0.1:8555/queue?name=q",
        "http://me:pw@here:1",
    ],
)
def test_a_dashboard_that_is_no_address(address):
    assert f"{address!r} is not the address of a dashboard: write http://HOST:PORT" in misused(
        "spark", "report", "q", "--dashboard", address
    )


@pytest.mark.parametrize("form", ["{}", "http://{}", "http://{}/"])
def test_a_named_dashboard_that_is_not_there_is_known_before_spark_starts(form, tmp_path):
    place = f"127.0.0.1:{free_port()}"
    stats = QueueStats(QueueInfo("q", 0, 0, 0, 0, False, False, 0), 0, 1000, 0, 0, 0, 0, 0, 0, [])
    with broker(answering(GetQueueStats=stats, GetClusterStatus=ClusterStatus("1", 1, []))) as peer:
        line = refused(
            "--endpoint",
            peer.endpoint,
            "spark",
            "report",
            "q",
            "--to",
            tmp_path / "r.html",
            "--dashboard",
            form.format(place),
        )
    assert line == f"Error: nothing answers at http://{place}: Connection refused"
    assert [*tmp_path.iterdir()] == []


def test_the_commands_and_what_they_run_agree():
    """They can't share these: commands are read without Spark."""
    assert tuple(FORMATS) == load.FORMATS
    assert drain.ROWS_PER_BATCH == ROWS_PER_BATCH
