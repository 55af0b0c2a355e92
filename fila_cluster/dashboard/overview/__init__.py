"""The page ``/``: is all well, what needs attention, who does the work."""
