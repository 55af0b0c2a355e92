"""The page ``/``: the state of the cluster, what needs attention, and the workers."""
