"""Which files are meant, and what is in them."""

import pytest

from fila_cluster.spark.pipelines.load import InputFiles, source_of
from fila_cluster.spark.pipelines.session import PipelineError


@pytest.mark.parametrize(
    ("name", "format_name"),
    [
        ("a.parquet", "parquet"),
        ("a.snappy.parquet", "parquet"),
        ("a.json", "json"),
        ("a.jsonl", "json"),
        ("a.NDJSON.gz", "json"),
        ("a.csv", "csv"),
        ("a.csv.zst", "csv"),
        ("a.b.txt", "text"),
        ("access.log", "text"),
    ],
)
def test_a_name_tells_the_format(name, format_name, tmp_path):
    (tmp_path / name).touch()
    assert source_of(str(tmp_path / name)) == InputFiles(str(tmp_path / name), format_name)


@pytest.mark.parametrize("name", ["access", "rows.dat", "rows.gz", ".csv"])
def test_a_name_that_tells_nothing(name, tmp_path):
    (tmp_path / name).touch()
    with pytest.raises(PipelineError, match="has no known ending: say which to read with --format"):
        source_of(str(tmp_path / name))
    assert source_of(str(tmp_path / name), "csv").format == "csv"


def test_a_directory_is_read_as_spark_would_read_it(tmp_path):
    for name in ("day=1/a.parquet", "day=2/b.parquet", "_SUCCESS", "_spark_metadata/0", ".a.parquet.crc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert source_of(str(tmp_path)).format == "parquet"


def test_files_of_two_formats_are_refused(tmp_path):
    (tmp_path / "a.csv").touch()
    (tmp_path / "b.json").touch()
    with pytest.raises(PipelineError, match="has csv and json files: say which"):
        source_of(str(tmp_path))
    assert source_of(f"{tmp_path}/*.csv") == InputFiles(f"{tmp_path}/*.csv", "csv")


@pytest.mark.parametrize("name", ["none.csv", "*.csv", "empty"])
def test_nothing_there(name, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(PipelineError, match="there is no file at"):
        source_of(str(tmp_path / name))


def test_what_is_elsewhere_is_for_spark_to_find():
    assert source_of("s3a://bucket/rows/*.csv.gz").format == "csv"
    assert source_of("hdfs://host/rows", "json").format == "json"
    with pytest.raises(PipelineError, match="has no known ending"):
        source_of("s3a://bucket/rows/")


def test_a_file_url_is_a_path(tmp_path):
    (tmp_path / "a.csv").touch()
    assert source_of(f"file://{tmp_path}/a.csv").format == "csv"
    with pytest.raises(PipelineError, match="there is no file"):
        source_of(f"file://{tmp_path}/b.csv")
