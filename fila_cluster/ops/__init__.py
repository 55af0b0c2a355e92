"""Tools to watch a cluster: observer, dashboard, ``top``, and the analysis that they share."""
