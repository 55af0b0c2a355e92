"""The parts that start and keep processes: supervisor, settings, backups, app workers, measurements."""
