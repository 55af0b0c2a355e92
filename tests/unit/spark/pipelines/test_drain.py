"""What a killed drain left behind, and only that, is removed."""

import json
from pathlib import Path
from uuid import UUID

import pytest

from fila_cluster.spark.pipelines.drain import remove_leftovers


def name_of(number: int) -> str:
    return f"part-{number:05}-{UUID(int=number)}.c000.snappy.parquet"


@pytest.fixture
def output(tmp_path) -> Path:
    """Files 1 to 4 are in the log, 5 and 6 are not."""
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    (tmp_path / "fairness_key=a b").mkdir()
    places = {1: "", 2: "fairness_key=a b/", 3: "", 4: "", 5: "", 6: "fairness_key=a b/"}
    for number, place in places.items():
        (tmp_path / place / name_of(number)).touch()
        (tmp_path / place / f".{name_of(number)}.crc").touch()

    def entry(number):
        folder = places[number].replace(" ", "%20")
        return json.dumps({"path": f"file://{tmp_path}/{folder}{name_of(number)}", "size": 1, "action": "add"})

    (log / "1.compact").write_text("\n".join(["v1", entry(1), entry(2)]))
    (log / "2").write_text("\n".join(["v1", entry(3), entry(4)]))
    (log / ".3.tmp").write_text("v1\n{")
    return tmp_path


def files(folder: Path) -> set[str]:
    return {file.name for file in folder.rglob("*") if file.is_file() and "_spark_metadata" not in file.parts}


def test_what_is_in_no_log_goes_with_its_checksum(output):
    assert remove_leftovers(str(output)) == 2
    kept = [name_of(number) for number in (1, 2, 3, 4)]
    assert files(output) == {*kept, *(f".{name}.crc" for name in kept)}
    assert remove_leftovers(str(output)) == 0


def test_what_the_sink_cannot_have_written_stays(output):
    mine = ["part-of-my-thesis.txt", "part-1.parquet", "rows.parquet"]
    for name in mine:
        (output / name).touch()
    remove_leftovers(str(output))
    assert set(mine) <= files(output)


def test_without_a_log_nothing_is_touched(tmp_path):
    (tmp_path / name_of(1)).touch()
    assert remove_leftovers(str(tmp_path)) == 0
    assert remove_leftovers("s3a://bucket/out") == 0
    assert files(tmp_path) == {name_of(1)}
