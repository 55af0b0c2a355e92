"""``python -P -m fila_cluster.run.backup.log_checkpoints``: standard input gives the settings as one line of JSON; the end of that input means stop."""

from fila_cluster.run.backup.log_checkpoints.running import begin
from fila_cluster.run.backup.process import run
from fila_cluster.run.backup.settings import KeeperSettings

if __name__ == "__main__":
    run("checkpoints", KeeperSettings, begin)
