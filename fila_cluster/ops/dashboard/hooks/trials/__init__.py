"""Trials of hook scripts on messages before they are applied: their decisions, made in a process of its own."""
