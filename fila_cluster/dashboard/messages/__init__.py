"""The page ``/messages``: what lies in a queue, and each message."""
