"""``python -P -m fila_cluster.run.backup``: standard input gives the settings as one line of JSON; the end of that input means stop."""

from fila_cluster.run.backup.process import run
from fila_cluster.run.backup.schedule import begin
from fila_cluster.run.backup.settings import ScheduleSettings

if __name__ == "__main__":
    run("backup", ScheduleSettings, begin)
