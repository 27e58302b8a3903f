"""Fingerprints of a group's merged, unrendered values.

Only what was really written counts: a default that a later version adds must not rotate a fleet. So models are dumped
without the values that equal their defaults.
"""

import hashlib
from collections.abc import Mapping

from pydantic import BaseModel

from nstance.config.readiness import CheckSpec
from nstance.config.workload import Certificate, FileSpec, Userdata
from nstance.model import codec


def runtime_hash(
    *, vars: Mapping[str, str], files: Mapping[str, FileSpec], certificates: Mapping[str, Certificate]
) -> str:
    """Changes when running instances must get new files."""
    return digest({"vars": vars, "files": _written(files), "certificates": _written(certificates)})


def checks_hash(checks: Mapping[str, CheckSpec]) -> str:
    """Changes when running agents must be given other checks, a new default included. Empty: there are none."""
    return digest({name: check.model_dump(mode="json") for name, check in checks.items()}) if checks else ""


def infra_hash(
    *,
    args: Mapping[str, object],
    instance_type: str,
    subnet_pool: str,
    userdata: Userdata | None,
    kind: str,
    arch: str,
) -> str:
    """Changes when instances must be replaced. Resolved images are no part of it: a new image rotates nobody."""
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


def _written(models: Mapping[str, BaseModel]) -> dict[str, object]:
    return {name: _dump(model) for name, model in models.items()}


def _dump(model: BaseModel) -> dict[str, object]:
    return model.model_dump(mode="json", exclude_defaults=True)
