"""The page ``/connections``: the clients, and a way to close one's session."""
