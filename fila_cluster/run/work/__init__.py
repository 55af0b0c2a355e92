"""``fila-cluster work``: processes that run an app's handlers, and the supervisor that looks after them.

Reading order: :mod:`roster` (when a process is started, drained and killed; no I/O) · :mod:`supervising` and :mod:`process`
(the shell around it) · :mod:`__main__` (one process) · :mod:`wire` (the lines between them) · :mod:`loading`, :mod:`logs`
(the setup of a process) · :mod:`progress` (the line in the terminal).
"""
