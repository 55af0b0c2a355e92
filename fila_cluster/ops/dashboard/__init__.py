"""The operations dashboard: NiceGUI pages inside the observer. They show its last answer of the cluster, and act as a client.

Read in this order: ``shell`` (the frame of every page: :mod:`shell.context`, :mod:`shell.links`, :mod:`shell.frame`,
:mod:`shell.live` for updates, :mod:`shell.feedback` for buttons), ``widgets`` (charts, tables), a folder or module for each
page, :mod:`serving`.
"""
