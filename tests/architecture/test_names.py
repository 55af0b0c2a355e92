"""One name, one thing: no two public classes of the product have the same name."""

import re
from collections import defaultdict

from tests.architecture.sources import PACKAGES, name_of, sources

WIRE = "fila_proto_zmq.commands."
CLIENT = "fila_cluster.client."
MADE = "fila_cluster.client.blocking."
"""Made from other code."""
DEMANDED = {"fila_cluster.django.management.commands.": "Command"}
"""Names that a framework demands."""


def classes() -> dict[str, list[str]]:
    """The public classes at the top of modules: their modules, by name."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for file in sources(*PACKAGES.values()):
        module = name_of(file)
        demanded = next((name for package, name in DEMANDED.items() if module.startswith(package)), "")
        for name in re.findall(r"^class ([A-Za-z]\w*)", file.read_text(), re.MULTILINE):
            if name != demanded and not module.startswith(MADE):
                found[name].append(module)
    return found


def is_view(modules: list[str]) -> bool:
    """Whether one of two classes is a struct of the wire, and the other one what the client shows of it."""
    return len(modules) == 2 and sum(module.startswith(WIRE) for module in modules) == 1 == sum(
        module.startswith(CLIENT) for module in modules
    )


def test_no_two_public_classes_have_the_same_name() -> None:
    assert {name: modules for name, modules in classes().items() if len(modules) > 1 and not is_view(modules)} == {}
