"""The parts that all processes of a cluster have in common.

:mod:`parent` is what ties it to the process that started it: settings, a sign of life, when to stop. :mod:`clock` is its
time, :mod:`journal` its log. :mod:`files` writes files that are whole or not at all.
"""
