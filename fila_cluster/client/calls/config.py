"""Calls about the runtime config."""

from typing import Any

from fila_cluster.client import checks
from fila_cluster.client.calls.request import Request
from fila_proto_zmq import commands


def set_config(key: Any, value: Any) -> Request:
    """Set a key of the runtime config."""
    return Request("", commands.SetConfig(_config_key(key), checks.plain_text("value", value, "for example str(value)")))


def delete_config(key: Any) -> Request:
    """Delete a key of the runtime config."""
    return Request("", commands.SetConfig(_config_key(key), None))


def get_config(key: Any) -> Request:
    """Ask for a key of the runtime config."""
    return Request("", commands.GetConfig(_config_key(key)))


def list_config(prefix: Any) -> Request:
    """Ask for the keys of the runtime config that start so."""
    return Request("", commands.ListConfig(checks.plain_text("prefix", prefix, "the first characters of the keys to list")))


def _config_key(key: Any) -> str:
    return checks.plain_text("key", key, "for example 'throttle:provider:rate'")
