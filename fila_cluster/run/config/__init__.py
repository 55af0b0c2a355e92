"""Static configuration: the settings of a cluster before it starts."""
