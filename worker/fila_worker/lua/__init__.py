"""The hook engine: a queue's Lua scripts, compiled, confined and run over batches.

There is one Lua state per queue; queues share nothing. The four ``.lua`` files are the inside of a state, in their order:
``limits`` (time and memory), ``patterns`` (the cost of a pattern), ``sandbox`` (what a script can reach), ``runs`` (a hook
over a batch). :mod:`~fila_worker.lua.state` is the outside; :mod:`~fila_worker.lua.decisions` checks the returned values;
:mod:`~fila_worker.lua.hooks` implements the core's port.
"""

from fila_worker.lua.hooks import compile_hooks

__all__ = ["compile_hooks"]
