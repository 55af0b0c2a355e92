"""The page of the queue templates."""
