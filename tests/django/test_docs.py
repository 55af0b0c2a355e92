"""The blocks of docs/django.md run as they stand there."""

import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.utils import timezone
from django.utils.module_loading import import_string

from fila_cluster.django.framework import PACKAGE
from fila_cluster.django.settings import Options
from tests.django.conftest import RunWorker

PAGE = (Path(__file__).parents[2] / "docs/django.md").read_text()
MODULE = "tasks_of_the_page"


def block(name: str) -> str:
    (found,) = re.findall(rf"^```python {re.escape(name)}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


@pytest.fixture
def module() -> Iterator[ModuleType]:
    module = sys.modules[MODULE] = ModuleType(MODULE)
    yield module
    del sys.modules[MODULE]


def test_the_blocks_of_the_page(tasks: ModuleType, work: RunWorker, module: ModuleType) -> None:
    names: dict[str, Any] = {}
    exec(block("settings"), names)
    params = names["TASKS"]["default"]
    assert import_string(params["BACKEND"])("page", params).queues == {"default", "emails"}
    exec(block("tasks.py").replace("from django.tasks", f"from {PACKAGE}"), module.__dict__)
    names = {"send_invoice": module.send_invoice, "timezone": timezone, "timedelta": timedelta}
    first, *others = block("shell").split("\n\n")
    exec(first, names)
    work()
    exec("\n".join(others), names)
    assert names["result"].return_value == "invoice 17 to acme"
    assert names["later"].status == "READY"
    exec(block("tenants"), names)
    assert names["tenant_of"](None, [], {"tenant": "acme"}) == "acme"


def test_the_table_of_the_options_is_whole() -> None:
    table = PAGE.partition("## Options")[2].partition("An unknown option")[0]
    named = [name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(set(named) - {"OPTIONS"}) == sorted(each.name for each in fields(Options))
