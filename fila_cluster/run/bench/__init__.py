"""``fila-cluster bench``: a workload against a running cluster, from processes of its own, with every message verified.

Producers and consumers are child processes, because one Python process is slower than the broker. All of them read the
machine's monotonic clock, so a payload's time stamp shows how long its message was on its way.

- ``workload``: the options, and payloads that prove that they are whole.
- ``latencies``: durations and numbers that a child counts, in bounded memory.
- ``clients``, ``__main__``: the children. ``running`` starts them, and does the steps of a run.
- ``outcome``: the figures, the verdict, and their look in a terminal.
"""
