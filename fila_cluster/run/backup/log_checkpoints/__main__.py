"""``python -P -m fila_cluster.run.backup.log_checkpoints``: standard input has the settings as a line of JSON; its end stops it."""

from fila_cluster.run.backup.log_checkpoints.keeping import begin
from fila_cluster.run.backup.process import KeeperSettings, run

if __name__ == "__main__":
    run("checkpoints", KeeperSettings, begin)
