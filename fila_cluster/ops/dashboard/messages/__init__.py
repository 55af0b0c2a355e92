"""The page ``/messages``: the messages in a queue, and each message in detail."""
