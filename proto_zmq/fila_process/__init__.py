"""What every process of a cluster is made of, whatever it does: how it is told what to be (:mod:`told`) and when to end (:mod:`stop`),
how it knows the time (:mod:`clock`) and says what happened (:mod:`journal`).

Beside the protocol, because router and worker share nothing else; no core imports it.
"""
