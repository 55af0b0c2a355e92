"""Named cases: runs that failed once, as files that replay without their seed."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fila_router.core.limits import RouterLimits
from fila_worker.core.settings import Limits, ShardSettings
from tests.simulation.faults import planted
from tests.simulation.faults.host_nature import HostsNature
from tests.simulation.faults.script import Step
from tests.simulation.options import Options
from tests.simulation.run import Result, run
from tests.simulation.world.log import LogNature

CASES = Path(__file__).parent


def keep(result: Result, name: str, about: str, bug: str | None = None) -> Path:
    """Write a run down under a name. ``bug``: it fails only with this one planted; ``about`` is then the checker."""
    plain = asdict(result.options)
    plain["features"], plain["faults"] = sorted(plain["features"]), sorted(plain["faults"])
    path = CASES / f"{name}.json"
    steps = [step.plain() for step in result.steps]
    case = {"about": about, "options": plain, "steps": steps} | ({"bug": bug} if bug else {})
    path.write_text(json.dumps(case, indent=1) + "\n")
    return path


def names() -> list[str]:
    """All named cases."""
    return sorted(path.stem for path in CASES.glob("*.json"))


def failures(name: str) -> list[tuple[str, str]]:
    """What is wrong with a named case: what it fails; and if its planted bug is not caught."""
    case = _read(name)
    found = _replay(_read(name)).failures
    if "bug" in case:
        with planted.planted(case["bug"]):
            caught = {checker for checker, _ in _replay(_read(name)).failures}
        if case["about"] not in caught:
            found.append((case["about"], f"does not catch {case['bug']}"))
    return found


def _read(name: str) -> dict[str, Any]:
    case: dict[str, Any] = json.loads((CASES / f"{name}.json").read_text())
    return case


def _replay(case: dict[str, Any]) -> Result:
    plain = case["options"]
    settings = plain.pop("shard_settings")
    limits, router_limits = settings.pop("limits"), plain.pop("router_limits")
    log, hosts = plain.pop("log", None), plain.pop("hosts", None)
    options = Options(
        **{key: _value(key, value) for key, value in plain.items()},
        shard_settings=ShardSettings(**settings, limits=Limits(**limits)),
        router_limits=RouterLimits(**router_limits),
        log=None if log is None else LogNature(tuple(log["confirm_us"]), log["volatile"]),
        hosts=None if hosts is None else HostsNature(**{key: _value(key, value) for key, value in hosts.items()}),
    )
    return run(options=options, steps=[Step(**step) for step in case["steps"]])


def _value(key: str, value: Any) -> Any:
    if key in ("features", "faults"):
        return frozenset(value)
    if key == "layout":
        return tuple(tuple(shards) for shards in value)
    return tuple(value) if isinstance(value, list) else value
