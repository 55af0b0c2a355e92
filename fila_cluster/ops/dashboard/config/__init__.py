"""The page ``/config``: the runtime config, throttles first."""
