"""The page ``/audit``: who did what."""
