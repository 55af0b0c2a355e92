"""Dramatiq on our broker: our own tests, and its own tests with our broker in place of its brokers."""
