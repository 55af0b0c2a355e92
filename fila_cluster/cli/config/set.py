"""``fila-cluster config set``."""

import click

from fila_cluster.cli.session import Session


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("key")
@click.argument("value")
@click.pass_obj
def command(session: Session, key: str, value: str) -> None:
    """Set KEY to VALUE in the whole cluster: every later enqueue sees it.

    throttle:KEY:rate and throttle:KEY:burst (or throttle.KEY, both as rate,burst) limit a throttle key in tokens a second.
    """
    with session.connect() as client:
        client.set_config(key, value)
    session.show({"key": key, "value": value}, f"{key} = {value}")
