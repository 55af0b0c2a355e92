"""Who leads a shard: the state machine of one shard in one process. Nothing is asked but the shard's own log.

**The last marker leads.** A leader appends a beat once a second. A standby that hears nothing for long enough appends a marker. If two do,
the later marker leads, and the other one goes back. So nobody has to agree on anything but the order of the log, and a wrong guess
costs time, never a record: what a deposed leader still appends does not count (:mod:`fila_worker.log.rule`).

::

               claim, its own marker is the last         serve when recovered
    FOLLOWS ────────────▶ CLAIMS ────────────▶ LEADS ──────────────────────▶ (serving)
       ▲  ▲                 │                    │ leave            no proof for long: stop serving, until there is one
       │  └── another one ──┘                    ▼
       └───────────────────────────────────── LEAVES          any: fenced, or an unknown outcome ─▶ ENDED

When a standby claims:

- **Silence.** It has read the log to its end and nothing that counts came for ``silence_ms``, and ``rank_ms`` more for each standby that is
  in line before it. The partition has answered all that time but the first part: after an outage of the log the leader's delayed records
  must have a chance to come. A silence in which this process itself did not run is none.
- **A vacancy.** The leader has left (its successor claims at once, the others soon after), the log has no marker yet, or the last marker is of
  this node's own former life, which is dead: the data directory is locked by this one. A node that *holds back* waits for a silence
  in the last case: it does not know yet that no other process has its name, or its disk is full.

A leader serves as long as it has proof. The proof is a record that counts, and holds from when that was *appended*: however late its report
comes, at that time no other marker was in the log. Without one for ``proof_ms_max`` another one may lead by now, so the leader stops serving;
it serves again if it still leads. Effects are held until confirmed anyway, so this limit is about clients that wait, not about safety.

All times are of a steady clock of this process, and only spans of it are used: what clocks of other hosts show does not matter.

Rejected: a lease with an end that others know. It needs clocks that run at about the same rate on all hosts, and saves nothing, because the
log fences anyway.
"""

from fila_worker.log.leadership.actions import (
    Action,
    Append,
    AskEnd,
    End,
    Follow,
    LeadershipState,
    Recover,
    Serve,
    StopServing,
)
from fila_worker.log.leadership.machine import Leadership
from fila_worker.log.leadership.term import LeadershipLimits, Proof

__all__ = [
    "Action",
    "Append",
    "AskEnd",
    "End",
    "Follow",
    "Leadership",
    "LeadershipLimits",
    "LeadershipState",
    "Proof",
    "Recover",
    "Serve",
    "StopServing",
]
