"""Give messages out: to receives, subscriptions and reservations."""
