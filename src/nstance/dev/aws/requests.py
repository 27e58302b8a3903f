"""Checks requests against AWS's own service models, as the SDK ships them: an unknown parameter is an error here too."""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import botocore.session
import botocore.validate

FORMS = ("ec2", "elasticloadbalancing", "sts")  # services whose requests are checked, by how they are written
JSON = ("secretsmanager", "ssm", "kms")
_NUMBER = re.compile(r"\.\d+(?=\.|$)")


@functools.cache
def _model(service: str) -> Any:
    names = {"elasticloadbalancing": "elbv2"}
    return botocore.session.get_session().get_service_model(names.get(service, service))


def unknown_parameters(service: str, params: Mapping[str, str]) -> list[str]:
    """Form parameters that the action does not have. Raises KeyError for an action that does not exist."""
    known = _known(service, params["Action"])
    return sorted(name for name in params if name not in ("Action", "Version") and _NUMBER.sub(".N", name) not in known)


def find_faults(service: str, action: str, params: Mapping[str, Any]) -> str:
    """What is wrong with the JSON of a call; empty if nothing is. Raises KeyError for an action that does not exist."""
    model = _model(service)
    if action not in model.operation_names:
        raise KeyError(action)
    shape = model.operation_model(action).input_shape
    return str(botocore.validate.ParamValidator().validate(params, shape).generate_report()) if shape else ""


@functools.cache
def _known(service: str, action: str) -> frozenset[str]:
    model = _model(service)
    if action not in model.operation_names:
        raise KeyError(action)
    shape = model.operation_model(action).input_shape
    is_ec2 = model.metadata["protocol"] == "ec2"
    return frozenset(_names(shape, "", is_ec2, ())) if shape is not None else frozenset()


def _names(shape: Any, prefix: str, is_ec2: bool, above: tuple[str, ...]) -> Iterator[str]:
    if shape.type_name == "structure":
        if shape.name in above:
            return
        for name, member in shape.members.items():
            written = member.serialization.get("queryName") or member.serialization.get("name") or name
            if is_ec2:
                written = written[:1].upper() + written[1:]
            yield from _names(member, f"{prefix}.{written}" if prefix else written, is_ec2, (*above, shape.name))
    elif shape.type_name == "list":
        infix = ".N" if is_ec2 or shape.serialization.get("flattened") else ".member.N"
        yield prefix  # an empty list
        yield from _names(shape.member, f"{prefix}{infix}", is_ec2, above)
    else:
        yield prefix
