"""The page ``/dead-letters``: dead letters by their errors, and the ways to send them back."""
