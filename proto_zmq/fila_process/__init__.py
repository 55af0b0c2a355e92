"""What each process of a cluster is made of.

:mod:`parent` is what ties it to the process that started it: settings, a sign of life, when to stop. :mod:`clock` is its
time, :mod:`journal` its log. :mod:`files` writes files that are whole or not at all.
"""
