"""``fila-cluster work``: processes that run an app's handlers, and the supervisor that looks after them."""
