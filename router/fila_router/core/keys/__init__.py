"""The API keys of a cluster with authentication, and how several routers agree on them."""
