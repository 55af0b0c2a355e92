"""What the keys do and the columns mean."""

from typing import Final

HELP: Final = """\
1 2 3 4   queues · keys of the chosen queue · workers · attention
enter     more: a queue's keys, why a key waits, what to do
↑ ↓ …     move (or j k g G PgUp PgDn)      + -  look more often, more rarely
← →       sort by the column beside (or < >), s: the other way round;
          a click on a title does both
/         only lines with this in their names; escape: all again
.         dead letter queues, too
p r       pause (asks first), resume: the queue; in view 2 the fairness key
d         send the dead letters of the queue back (asks first)
w         why it waits                     q    quit

queues    pend: ready · leased: with consumers · delay: not due yet
          old: age of the oldest pending one · cons: consumers
          down, silent: nobody answers for its shard · unread: messages
          and no consumer · breaker: its hooks keep failing
keys      due: what its weight entitles it to · got: of all deliveries
workers   cpu: of one core · turn, commit: p99 = 99 % were no longer
–         not known: there was no look before, or counters started over
"""
