"""Events of the supervisor: the cluster as a whole, and its processes."""

from fila_proto_zmq.events.event import Event


class ClusterStarting(Event):
    """All checks are done; the processes are about to be started."""

    event = "cluster.starting"
    version: str
    data_dir: str
    workers: int
    shards: int


class DataDirCreated(Event):
    """A new cluster: a data directory was created, with its number of shards."""

    event = "data_dir.created"
    advice = (
        "If you did not expect this, `--data-dir` or the working directory is not the one of earlier starts: stop, and "
        "start with the earlier one."
    )
    data_dir: str
    shards: int


class ClusterReady(Event):
    """Every shard serves."""

    event = "cluster.ready"
    endpoint: str
    dashboard: str | None
    workers: int
    startup_ms: int


class ClusterStopping(Event):
    """The supervisor stops: on a signal, or because it gives up."""

    event = "cluster.stopping"
    advice = (
        "If no one stopped it, read the line before: it is plain text, not an event, and says which part could not start."
    )


class ClusterStopped(Event):
    """All parts have ended."""

    event = "cluster.stopped"
    stop_ms: int


class ChildRenewed(Event):
    """The keys of the server have changed on disk: a part is asked to end, and starts again with them."""

    event = "child.renewed"
    child: str
    child_pid: int


class ChildStarted(Event):
    """A part of the cluster was started, for the ``starts``-th time."""

    event = "child.started"
    child: str
    child_pid: int
    starts: int


class ChildDied(Event):
    """A part of the cluster ended without a request to stop, and will be started again."""

    event = "child.died"
    level = "warning"
    advice = (
        "Do nothing at first: it comes back. `signal 9` that you did not send is mostly the system's out-of-memory killer "
        "(`dmesg`). If it dies again and again, look for `process.failed` or `storage.failed` of that `child_pid` before "
        "it, and report it with those lines."
    )
    child: str
    child_pid: int
    exit: str
    lived_ms: int
    restart_ms: int


class ChildUnstartable(Event):
    """The system did not let the supervisor start a part again; the supervisor keeps trying."""

    event = "child.unstartable"
    level = "error"
    advice = "`reason` says what the machine lacks: mostly memory or process ids."
    child: str
    reason: str
    restart_ms: int


class ChildHung(Event):
    """A part runs and its loop has not turned for long. The supervisor ends it and starts it again."""

    event = "child.hung"
    level = "error"
    advice = (
        "If it was stopped (a debugger, `kill -STOP`) or its disk does not answer (`dmesg`), correct that. Else it is a "
        "bug: report it with the lines that it logged before."
    )
    child: str
    child_pid: int
    silent_ms: int


class ChildKilled(Event):
    """A part did not stop in time and was killed."""

    event = "child.killed"
    level = "warning"
    advice = "Nothing is lost. If it was a worker, its disk is slow: see `storage.stalled`."
    child: str
    child_pid: int
    waited_ms: int


class BackupTaken(Event):
    """A scheduled backup is whole, and ``removed`` old ones were removed."""

    event = "backup.taken"
    target: str
    backup: str
    size_bytes: int
    copied_bytes: int
    removed: int
    took_ms: int


class CheckpointKept(Event):
    """A checkpoint of a shard on a replicated log is at the target. The log may forget all that only earlier ones need."""

    event = "checkpoint.kept"
    target: str
    shard: int
    offset: int
    size_bytes: int
    copied_bytes: int
    took_ms: int


class CheckpointBrought(Event):
    """A checkpoint was brought from the target, for a copy that could not follow the log."""

    event = "checkpoint.brought"
    target: str
    shard: int
    offset: int
    size_bytes: int
    took_ms: int


class CheckpointTransferFailed(Event):
    """A checkpoint could not be carried to the target, or brought from there. It is tried again."""

    event = "checkpoint.failed"
    level = "error"
    advice = (
        "`reason` says what to do: mostly the target is full or not reachable. Until it works, the log of the shard grows."
    )
    target: str
    shard: int
    error: str
    reason: str


class BackupFailed(Event):
    """A scheduled backup failed. It is tried again after a minute, or after `[backup] every` if that is less."""

    event = "backup.failed"
    level = "error"
    advice = (
        "`reason` says what to do: mostly the target is full or not reachable. A shard that does not serve cannot be backed "
        "up: see `shard.quarantined`. Earlier backups are as they were."
    )
    target: str
    error: str
    reason: str
