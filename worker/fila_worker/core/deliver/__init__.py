"""Delivery of messages to receives, subscriptions and reservations."""
