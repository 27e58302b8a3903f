"""What a revision is made of, as an object in the bucket: a template with all layers of its group, and its certificates."""

import json
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, ValidationError

from nstance.config import fields, workload
from nstance.config.errors import ConfigError, Problem
from nstance.config.resolve import Parts


class _Stored(fields.Block):
    version: Literal[1] = 1
    template: workload.Template
    certificates: Mapping[fields.Label, workload.Certificate] = Field(default_factory=dict)


def dump(parts: Parts) -> bytes:
    stored = fields.written(_Stored(template=parts.template, certificates=parts.certificates))
    return json.dumps({"version": 1, **stored}, ensure_ascii=False, sort_keys=True, allow_nan=False).encode()


def parse(body: bytes, *, source: str) -> Parts:
    """Raises ConfigError."""
    try:
        stored = _Stored.model_validate_json(body)
    except ValidationError as error:
        message = f"expected the parts of a revision: {error.errors(include_url=False)[0]['msg']}"
        raise ConfigError((Problem(source, 0, 0, message),)) from None
    return Parts(stored.template, stored.certificates)
