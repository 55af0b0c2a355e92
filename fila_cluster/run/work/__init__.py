"""``fila-cluster work``: processes that run an app's handlers, and the supervisor that looks after them.

Reading order: :mod:`roster` (when a process is started, drained and killed; no I/O) · :mod:`supervising` and :mod:`process` (the shell around it) ·
:mod:`__main__` (one process) · :mod:`wire` (what a process tells its supervisor) · :mod:`loading`, :mod:`logs`, :mod:`telemetry` (what a
process sets up) · :mod:`progress` (the line in the terminal) · :mod:`changes` (``--reload``).
"""
