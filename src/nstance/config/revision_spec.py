"""The spec of a revision, which is stored in the bucket: its merged template and its certificates."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, ValidationError

from nstance.config import hashes
from nstance.config.errors import ConfigError, Problem
from nstance.config.model import scalars, workload


@dataclass(frozen=True)
class RevisionSpec:
    """Everything needed to make the instances of a revision and their files again after the configuration changed."""

    template: workload.Template  # merged with all layers of the group
    certificates: Mapping[str, workload.Certificate]  # of its certificate files

    @functools.cached_property
    def infra_hash(self) -> str:
        return hashes.infra_hash(self.template)


class _Stored(scalars.Block):
    version: Literal[1] = 1
    template: workload.Template
    certificates: Mapping[scalars.Label, workload.Certificate] = Field(default_factory=dict)


def dump(spec: RevisionSpec) -> bytes:
    stored = scalars.dump_as_written(_Stored(template=spec.template, certificates=spec.certificates))
    return json.dumps({"version": 1, **stored}, ensure_ascii=False, sort_keys=True, allow_nan=False).encode()


def parse(body: bytes, *, source: str) -> RevisionSpec:
    """Raises ConfigError."""
    try:
        stored = _Stored.model_validate_json(body)
    except ValidationError as error:
        message = f"expected the spec of a revision: {error.errors(include_url=False)[0]['msg']}"
        raise ConfigError((Problem(source, 0, 0, message),)) from None
    return RevisionSpec(stored.template, stored.certificates)
