"""Hashes of a group's merged, unrendered values.

Values that equal their default are left out, because a default that a later version adds must not replace a fleet.
"""

import hashlib
from collections.abc import Mapping

from pydantic import BaseModel

from nstance.config.model.readiness import CheckSpec
from nstance.config.model.workload import Certificate, FileSpec, Template
from nstance.model import codec


def runtime_hash(
    *, vars: Mapping[str, str], files: Mapping[str, FileSpec], certificates: Mapping[str, Certificate]
) -> str:
    """Changes when running instances need new files."""
    return digest({"vars": vars, "files": _dump_all(files), "certificates": _dump_all(certificates)})


def checks_hash(checks: Mapping[str, CheckSpec]) -> str:
    """Changes when running agents need other checks, including new defaults. Empty: no checks."""
    return digest({name: check.model_dump(mode="json") for name, check in checks.items()}) if checks else ""


def parts_hash(runtime_hash: str, checks_hash: str) -> str:
    """Changes with anything that running instances are sent. Without checks it is the runtime hash."""
    return digest([runtime_hash, checks_hash]) if checks_hash else runtime_hash


def infra_hash(template: Template) -> str:
    """Changes when instances must be replaced. Resolved images are left out: a new image replaces no instance. So is what a
    fallback chose; the lists that it chose from are in."""
    userdata = template.userdata
    content: dict[str, object] = {
        "args": template.args,
        "instance_type": template.instance_type or "",
        "subnet_pool": template.subnet_pool or "",
        "userdata": None if userdata is None else _dump(userdata),
        "kind": template.kind,
        "arch": template.arch,
    }
    if template.instance_types:
        content["instance_types"] = template.instance_types
    if template.markets:
        content["markets"] = template.markets
    return digest(content)


def digest(value: object) -> str:
    return "sha256:" + hashlib.sha256(codec.canonical(value)).hexdigest()


def _dump_all(models: Mapping[str, BaseModel]) -> dict[str, object]:
    return {name: _dump(model) for name, model in models.items()}


def _dump(model: BaseModel) -> dict[str, object]:
    return model.model_dump(mode="json", exclude_defaults=True)
