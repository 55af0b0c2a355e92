"""One cluster that is killed and started again once, for all scenarios of this folder.

A module has ``before(client)``, which runs before the kill, and a test that uses the fixture ``restarted``, a client of the cluster after it.
"""

import pkgutil
from collections.abc import Iterator
from importlib import import_module

import pytest

from fila_cluster import Client
from tests.support.cluster.cluster import running


@pytest.fixture(scope="package")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of the cluster after its restart. It is closed with these tests: others count threads."""
    data_dir = tmp_path_factory.mktemp("restarted")
    path = import_module(__package__).__path__
    modules = [
        import_module(f"{__package__}.{each.name}") for each in pkgutil.iter_modules(path) if each.name.startswith("test_")
    ]
    with running(data_dir, workers=2) as cluster:
        with cluster.client() as client:
            for module in modules:
                module.before(client)
        cluster.kill_all()
    with running(data_dir, workers=2) as cluster, cluster.client() as client:
        yield client
