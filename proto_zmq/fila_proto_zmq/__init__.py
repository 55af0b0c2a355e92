"""The wire protocol of fila-cluster, as plain data: no sockets, no clock, no state.

Read in this order: :mod:`limits` and :mod:`errors` (the nouns), :mod:`names` and :mod:`ids` (what is called what),
:mod:`frames` (the fixed header), :mod:`record` (a message at rest and in flight), :mod:`commands` (everything a peer
can say) and :mod:`codec` (how it becomes bytes). ``docs/protocol.md`` says the same for other languages.
"""
