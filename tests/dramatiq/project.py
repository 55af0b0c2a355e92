"""A project for the command line: ``dramatiq tests.dramatiq.project``. Its tasks append a line to a file."""

import os
import time

import dramatiq

from fila_cluster.dramatiq import FilaBroker

dramatiq.set_broker(FilaBroker())


@dramatiq.actor
def note(number: int) -> None:
    time.sleep(0.005)
    with open(os.environ["TASKS_TEST_NOTES"], "a") as notes:
        notes.write(f"{number}\n")
