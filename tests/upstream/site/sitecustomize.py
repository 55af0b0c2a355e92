"""Make fila:// known in the processes that Celery's tests start, as the module of a user's app does it."""

import fila_cluster.celery  # noqa: F401
