"""What may import what, as far as the contracts of import-linter (``pyproject.toml``) cannot say it, and what a process really loads."""

import ast
import subprocess
import sys

import pytest

from tests.architecture.sources import PACKAGES, imported_by, imports_of, name_of, roots, sources

pytestmark = pytest.mark.whole

PROTOCOL = PACKAGES["fila_proto_zmq"]
CLUSTER = PACKAGES["fila_cluster"]


def test_the_protocol_needs_the_standard_library_and_msgspec_only() -> None:
    allowed = sys.stdlib_module_names | {"fila_proto_zmq", "msgspec"}
    violations = {(name_of(file), name) for file in sources(PROTOCOL) for name in roots(imports_of(file)) - allowed}
    assert violations == set()


def test_only_the_store_knows_rocksdb() -> None:
    users = {name_of(file) for file in sources(*PACKAGES.values()) if "rocksdict" in roots(imports_of(file))}
    assert {user.rpartition(".")[0] for user in users} == {"fila_worker.storage"}


def test_only_the_log_on_kafka_knows_its_library() -> None:
    users = {name_of(file) for file in sources(*PACKAGES.values()) if "confluent_kafka" in roots(imports_of(file))}
    assert users == {"fila_worker.log.kafka.clients"}


def test_a_worker_and_the_settings_of_a_log_on_kafka_do_without_its_library() -> None:
    loaded = loaded_by("import fila_worker.__main__, fila_worker.loop, fila_worker.log.kafka.settings")
    assert "confluent_kafka" not in loaded


@pytest.mark.parametrize(
    ("part", "library"),
    [
        ("spark", "pyspark"),
        ("ops.dashboard", "nicegui"),
        ("outbox", "sqlalchemy"),
        ("celery", "kombu"),
        ("dramatiq", "dramatiq"),
        ("django", "django"),
    ],
)
def test_what_an_extra_brings_is_imported_only_on_use(part: str, library: str) -> None:
    """At the top of a module by its own package alone; others import it where they run."""
    package = f"fila_cluster.{part}"
    others = [file for file in sources(*PACKAGES.values()) if CLUSTER.joinpath(*part.split(".")) not in file.parents]
    top = {
        (name_of(file), name) for file in others for node in ast.parse(file.read_text()).body for name in imported_by(node)
    }
    violations = {(module, name) for module, name in top if f"{name}.".startswith((f"{package}.", f"{library}."))}
    assert violations == set()


NOT_FOR_CLIENTS = {
    "click", "rich", "textual", "rocksdict", "lupa", "pyspark", "pydantic", "pydantic_settings", "psutil", "sortedcontainers",
    "fila_admission", "fila_process", "fila_worker", "fila_router", "fila_cluster.cli", "fila_cluster.run.supervisor", "fila_cluster.run.config",
}  # fmt: skip


def loaded_by(statement: str) -> set[str]:
    """The modules in memory after a statement, in a process of its own."""
    code = f"{statement}\nimport sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import fila_cluster.client",
        "from fila_cluster import Client, AsyncClient, Message, Delivery",
        "import fila_cluster.errors",
    ],
)
def test_a_client_drags_in_no_server(statement: str) -> None:
    loaded = loaded_by(statement)
    assert {name for name in loaded if name in NOT_FOR_CLIENTS or name.partition(".")[0] in NOT_FOR_CLIENTS} == set()


def test_the_protocol_drags_in_no_socket() -> None:
    everything = "import fila_proto_zmq.codec, fila_proto_zmq.record, fila_proto_zmq.names, fila_proto_zmq.ids"
    assert roots(loaded_by(everything)) & {"zmq", "fila_worker", "fila_router", "fila_cluster"} == set()


def test_the_cores_drag_in_no_socket_and_no_disk() -> None:
    loaded = roots(loaded_by("import fila_worker.core.shard, fila_worker.core.recovery"))
    assert loaded & {"zmq", "rocksdict", "psutil", "fila_router", "fila_cluster"} == set()


def test_the_router_drags_in_no_store() -> None:
    assert roots(loaded_by("import fila_router.loop")) & {"rocksdict", "fila_worker", "fila_cluster"} == set()


@pytest.mark.parametrize("part", ["fila_worker", "fila_router"])
def test_a_part_that_restarts_loads_nothing_that_it_can_serve_without(part: str) -> None:
    """Its queues are away for as long as this takes: each of these costs 20 to 100 ms of the processor."""
    loaded = loaded_by(f"import {part}.__main__")
    assert loaded & {"structlog", "rich", "asyncio", "importlib.metadata", "email"} == set()
