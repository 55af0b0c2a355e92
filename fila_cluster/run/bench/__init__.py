"""``fila-cluster bench``: a workload against a running cluster, from processes of its own, with every message verified.

Producers and consumers are child processes, because one Python process is slower than the broker. All of them read the
machine's monotonic clock, so a payload's time stamp shows how long its message was on its way.

- ``workload``: the options, and what is sent. ``payloads``: how a message proves that it is whole.
- ``seen`` and ``latencies``: what a child finds, in memory with a bound.
- ``producing``, ``consuming``, ``__main__``: the children. ``crew`` runs them, ``running`` does the steps of a run.
- ``outcome``: the figures and the verdict. ``report``: how they look.
"""
