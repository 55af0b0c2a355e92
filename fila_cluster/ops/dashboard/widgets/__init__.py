"""Widgets that several pages use: tables, charts, payloads, the choice of a queue."""
