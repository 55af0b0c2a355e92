"""The one entry of a cluster: forwards clients' frames to the worker that holds the queue, and the answers back."""
