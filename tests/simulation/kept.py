"""Named cases: runs that failed once, as files that replay without their seed."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fila_router.core.limits import RouterLimits
from fila_worker.core.limits import Limits
from fila_worker.core.settings import ShardSettings
from tests.simulation.options import Options
from tests.simulation.run import Result, run
from tests.simulation.script import Step

CASES = Path(__file__).parent / "cases"


def keep(result: Result, name: str, about: str) -> Path:
    """Write a run down under a name."""
    plain = asdict(result.options)
    plain["features"], plain["faults"] = sorted(plain["features"]), sorted(plain["faults"])
    path = CASES / f"{name}.json"
    steps = [step.plain() for step in result.steps]
    path.write_text(json.dumps({"about": about, "options": plain, "steps": steps}, indent=1) + "\n")
    return path


def names() -> list[str]:
    """All named cases."""
    return sorted(path.stem for path in CASES.glob("*.json"))


def replay(name: str) -> Result:
    """Live through a named case."""
    case: dict[str, Any] = json.loads((CASES / f"{name}.json").read_text())
    plain = case["options"]
    settings = plain.pop("shard_settings")
    limits, router_limits = settings.pop("limits"), plain.pop("router_limits")
    options = Options(
        **{key: _value(key, value) for key, value in plain.items()},
        shard_settings=ShardSettings(**settings, limits=Limits(**limits)),
        router_limits=RouterLimits(**router_limits),
    )
    return run(options=options, steps=[Step(**step) for step in case["steps"]])


def _value(key: str, value: Any) -> Any:
    if key in ("features", "faults"):
        return frozenset(value)
    if key == "layout":
        return tuple(tuple(shards) for shards in value)
    return tuple(value) if isinstance(value, list) else value
