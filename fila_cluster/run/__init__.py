"""What starts and keeps processes: supervisor, settings, backups, app workers, measurements."""
