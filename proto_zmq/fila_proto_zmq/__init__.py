"""The wire protocol of fila-cluster, as plain data: no sockets, no clock, no state.

Read in this order: :mod:`limits` and :mod:`errors` (the nouns), :mod:`names` and :mod:`ids` (queues, shards, messages),
:mod:`frames` (the fixed header), :mod:`record` (a message at rest and in flight), :mod:`commands` (all commands and
replies) and :mod:`codec` (how they become bytes). ``docs/protocol.md`` is the same for other languages.
"""
