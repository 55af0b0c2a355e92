"""Shared parts of commands: global options and output, tables, types of parameters, JSON lines."""
