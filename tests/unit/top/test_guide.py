"""docs/top.md says what there is."""

import ast
import re
from pathlib import Path

from fila_cluster.analysis import attention
from fila_cluster.top.columns import KEYS, QUEUES, WORKERS

GUIDE = (Path(__file__).parents[3] / "docs/top.md").read_text()


def section(title: str) -> str:
    return GUIDE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_every_concern_is_explained():
    assert attention.__file__ is not None
    calls = [node for node in ast.walk(ast.parse(Path(attention.__file__).read_text())) if isinstance(node, ast.Call)]
    made = [call.args for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Concern"]
    codes = {code.value for _, code, *_ in made if isinstance(code, ast.Constant)}
    assert len(codes) == 13
    assert set(re.findall(r"^\| `(\w+)` \|", section("What needs attention"), re.MULTILINE)) == codes


def test_every_column_is_explained():
    explained = " ".join(line.split("|")[1] for line in section("Columns").splitlines() if line.startswith("| "))
    obvious = {"queue", "shard", "fairness key", "weight", "worker", "pid", "queues", "rss", "p99", "shards"}
    titles = {column.title for column in (*QUEUES, *KEYS, *WORKERS)}
    assert {title for title in titles - obvious if title.split(" ")[0] not in explained} == set()


def test_hidden_columns_are_told():
    hidden = {(column.title, column.screen_cells) for column in QUEUES if column.screen_cells}
    assert hidden == {("ack/s", 90), ("shard", 100), ("depth", 110)}
    assert "`ack/s` (under 90 columns), `shard` (100) and the bars (110)" in GUIDE
