"""``python -P -m fila_cluster.run.backup``: standard input has the settings as a line of JSON; its end stops the process."""

from fila_cluster.run.backup.process import ScheduleSettings, run
from fila_cluster.run.backup.schedule import begin

if __name__ == "__main__":
    run("backup", ScheduleSettings, begin)
