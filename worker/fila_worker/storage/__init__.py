"""Implementations of the storage port of :mod:`fila_worker.core.store`."""
