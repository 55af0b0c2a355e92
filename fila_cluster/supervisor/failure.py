"""Why a cluster, or a part of one, does not start."""


class CannotStartError(Exception):
    """One line for a person: what is in the way, and what to do. Nothing was touched."""
