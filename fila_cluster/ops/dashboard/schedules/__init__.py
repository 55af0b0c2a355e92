"""The page of the schedules."""
