"""The rules for `metadata`, which are the same for all kinds."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from nstance import clock as clocks
from nstance.kube.api import status
from nstance.kube.api.resources import Resource
from nstance.kube.api.status import Cause
from nstance.kube.port import Object

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'example.com')"
)
_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character (e.g. 'my-name')"
)
_ANNOTATIONS_LIMIT = 256 * 1024
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # no vowels, so that no words appear
SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def generate_uid(rng: clocks.Rng) -> str:
    bits = (rng.bits(128) & ~(0xF << 76) & ~(0x3 << 62)) | (4 << 76) | (2 << 62)
    text = f"{bits:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def generate_name(prefix: str, rng: clocks.Rng) -> str:
    return prefix[:58] + "".join(_SUFFIX[rng.bits(16) % len(_SUFFIX)] for _ in range(5))


def decode(resource: Resource, body: Any) -> Object:
    """The object's metadata, with checked types. Raises 400 where a decoder would."""
    if not isinstance(body, dict):
        raise status.bad_request(f"expected an object of kind {resource.kind}, found {type(body).__name__}")
    meta = body.get("metadata")
    if meta is None:
        meta = {}
    if not isinstance(meta, dict):
        raise _undecodable(resource, "metadata", "an object", meta)
    for name in ("name", "namespace", "generateName", "uid", "resourceVersion"):
        if not isinstance(meta.get(name, ""), str):
            raise _undecodable(resource, f"metadata.{name}", "a string", meta[name])
    for name in ("labels", "annotations"):
        value = meta.get(name)
        if value is None:
            continue
        if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            raise _undecodable(resource, f"metadata.{name}", "a map of strings", value)
    for name, element in (("finalizers", str), ("ownerReferences", dict)):
        value = meta.get(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(each, element) for each in value)):
            raise _undecodable(resource, f"metadata.{name}", f"a list of {element.__name__}", value)
    return meta


def _undecodable(resource: Resource, field: str, wanted: str, found: Any) -> status.ApiError:
    shown = type(found).__name__
    return status.bad_request(f"{resource.kind} cannot be handled as it is: {field}: expected {wanted}, found {shown}")


def find_faults(resource: Resource, meta: Object) -> Iterator[Cause]:
    """The problems of the metadata, by field."""
    yield from _name_faults(resource, meta.get("name", ""))
    for key, value in (meta.get("labels") or {}).items():
        if not is_qualified_name(key):
            yield Cause("metadata.labels", f'Invalid value: "{key}": {_QUALIFIED_TEXT}')
        if not _VALUE.fullmatch(value):
            text = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'"
            yield Cause("metadata.labels", f'Invalid value: "{value}": {text}, and at most 63 of them')
    annotations = meta.get("annotations") or {}
    for key in annotations:
        if not is_qualified_name(key.lower()):
            yield Cause("metadata.annotations", f'Invalid value: "{key}": {_QUALIFIED_TEXT}')
    if sum(len(key) + len(value) for key, value in annotations.items()) > _ANNOTATIONS_LIMIT:
        yield Cause(
            "metadata.annotations", f"Too long: may not be more than {_ANNOTATIONS_LIMIT} bytes", "FieldValueTooLong"
        )
    for name in meta.get("finalizers") or ():
        if not is_qualified_name(name):
            yield Cause("metadata.finalizers", f'Invalid value: "{name}": {_QUALIFIED_TEXT}')
    controllers = 0
    for number, owner in enumerate(meta.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not isinstance(owner.get(field), str) or not owner[field]:
                yield Cause(f"metadata.ownerReferences[{number}].{field}", "Required value", "FieldValueRequired")
        controllers += owner.get("controller") is True
    if controllers > 1:
        text = "Invalid value: Only one reference can have Controller set to true"
        yield Cause("metadata.ownerReferences", text)


_QUALIFIED_TEXT = (
    "a qualified name must consist of alphanumeric characters, '-', '_' or '.', with an optional DNS subdomain "
    "prefix and '/' (e.g. 'example.com/MyName')"
)


def is_qualified_name(name: str) -> bool:
    prefix, slash, rest = name.rpartition("/")
    if slash and not (len(prefix) <= 253 and _SUBDOMAIN.fullmatch(prefix)):
        return False
    return bool(_QUALIFIED.fullmatch(rest))


def _name_faults(resource: Resource, name: str) -> Iterator[Cause]:
    field = "metadata.name"
    if not name:
        yield Cause(field, "Required value: name or generateName is required", "FieldValueRequired")
    elif resource.group == "rbac.authorization.k8s.io":  # names with colons are common there
        if name in (".", "..") or "/" in name or "%" in name:
            yield Cause(field, f"Invalid value: \"{name}\": may not be '.' or '..' and may not contain '/' or '%'")
    elif resource.id in ("namespaces", "services"):
        if not _LABEL.fullmatch(name):
            yield Cause(field, f'Invalid value: "{name}": {_LABEL_TEXT}')
    elif len(name) > 253:
        yield Cause(field, f'Invalid value: "{name}": must be no more than 253 characters')
    elif not _SUBDOMAIN.fullmatch(name):
        yield Cause(field, f'Invalid value: "{name}": {_SUBDOMAIN_TEXT}')
