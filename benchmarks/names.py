"""The benchmarks, in the order of the page. A module has a ``BENCHMARK``."""

from typing import Final

MODULES: Final = {
    "throughput": "benchmarks.workloads.throughput",
    "unary": "benchmarks.workloads.unary",
    "latency": "benchmarks.workloads.latency",
    "payloads": "benchmarks.workloads.payloads",
    "fsync": "benchmarks.workloads.fsync",
    "peers": "benchmarks.peers.comparison",
    "fairness": "benchmarks.workloads.fairness",
    "hooks": "benchmarks.workloads.hooks",
    "throttles": "benchmarks.workloads.throttles",
    "backlog": "benchmarks.workloads.backlog",
    "keys": "benchmarks.workloads.keys",
    "delays": "benchmarks.workloads.delays",
    "scaling": "benchmarks.workloads.scaling",
    "soak": "benchmarks.workloads.soak",
    "turns": "benchmarks.inside.turns",
    "long_turns": "benchmarks.inside.long_turns",
    "router_hop": "benchmarks.inside.router_hop",
    "chaos": "benchmarks.faults.chaos",
    "moves": "benchmarks.faults.moves",
    "overload": "benchmarks.faults.overload",
    "hostile": "benchmarks.faults.hostile",
    "metrics": "benchmarks.costs.metrics",
    "tracing": "benchmarks.costs.tracing",
    "encryption": "benchmarks.costs.encryption",
    "spark": "benchmarks.costs.spark",
}
