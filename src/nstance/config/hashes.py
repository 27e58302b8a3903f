"""Hashes of a group's merged, unrendered values.

Values that equal their default are left out, because a default that a later version adds must not replace a fleet.
"""

import hashlib
from collections.abc import Mapping

from pydantic import BaseModel

from nstance.config.model.readiness import CheckSpec
from nstance.config.model.workload import Certificate, FileSpec, Userdata
from nstance.model import codec


def runtime_hash(
    *, vars: Mapping[str, str], files: Mapping[str, FileSpec], certificates: Mapping[str, Certificate]
) -> str:
    """Changes when running instances need new files."""
    return digest({"vars": vars, "files": _dump_all(files), "certificates": _dump_all(certificates)})


def checks_hash(checks: Mapping[str, CheckSpec]) -> str:
    """Changes when running agents need other checks, including new defaults. Empty: no checks."""
    return digest({name: check.model_dump(mode="json") for name, check in checks.items()}) if checks else ""


def infra_hash(
    *, args: Mapping[str, object], instance_type: str, subnet_pool: str, userdata: Userdata | None, kind: str, arch: str
) -> str:
    """Changes when instances must be replaced. Resolved images are left out: a new image replaces no instance."""
    return digest(
        {
            "args": args,
            "instance_type": instance_type,
            "subnet_pool": subnet_pool,
            "userdata": None if userdata is None else _dump(userdata),
            "kind": kind,
            "arch": arch,
        }
    )


def digest(value: object) -> str:
    return "sha256:" + hashlib.sha256(codec.canonical(value)).hexdigest()


def _dump_all(models: Mapping[str, BaseModel]) -> dict[str, object]:
    return {name: _dump(model) for name, model in models.items()}


def _dump(model: BaseModel) -> dict[str, object]:
    return model.model_dump(mode="json", exclude_defaults=True)
