"""The files of deploy/: they fit each other, and what this version knows."""
