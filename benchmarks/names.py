"""The benchmarks, in the order of the page. A module has a ``BENCHMARK``."""

from typing import Final

MODULES: Final = {
    "throughput": "benchmarks.workloads.throughput",
}
