"""The page ``/letters``: what failed for good, by what went wrong, and the ways out."""
