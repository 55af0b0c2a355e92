"""The HTTP API: messages in and out by HTTP, for shell scripts and other languages."""
