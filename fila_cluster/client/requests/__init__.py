"""One request after the other: calls, the ways that they take, and what becomes of them when a way is lost."""
