# ruff: noqa: F403, F405  # the modules below have public names only
"""All events of the logs. ``docs/logs.md`` has what to do about each.

An event is a value: cores note it among the effects of a turn, shells write it down. Names and fields are for people's
searches and alerts, so they are as fixed as the wire. Events are about queues, workers and processes, never about single
messages; no field holds a payload, a header, a script or the value of a config key.
"""

from fila_proto_zmq.events.cluster import *
from fila_proto_zmq.events.event import *
from fila_proto_zmq.events.process import *
from fila_proto_zmq.events.router import *
from fila_proto_zmq.events.worker import *

CATALOGUE: dict[str, type[Event]] = {each.event: each for each in Event.__subclasses__()}
"""All events by name."""
