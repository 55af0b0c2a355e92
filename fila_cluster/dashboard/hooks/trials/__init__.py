"""Hook scripts tried out on messages before they are applied: what they would decide, in a process of its own.

:mod:`plan` is what such a process is asked and what it answers, :mod:`run` what it does, :mod:`start` starts and stops it,
:mod:`messages` gathers what to try scripts on, :mod:`verdicts` makes rows of a table of it all.
"""
