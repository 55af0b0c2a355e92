"""The operations dashboard: NiceGUI pages inside the observer. They show its last answer of the cluster, and act as a client.

Read in this order: ``shell`` (what every page stands in: :mod:`shell.context`, :mod:`shell.links`, :mod:`shell.frame`,
:mod:`shell.theme`, :mod:`shell.live` for updates, :mod:`shell.feedback` for buttons), ``widgets`` (charts, tables), a folder
for each page, :mod:`serving`.
"""
