"""Builds the object to store from a request: one pure function for new objects, one for changes."""

import base64

from nstance.kube.api import core_schemas, crd_objects, metadata, scaling, schema, status, values
from nstance.kube.api.resources import Served
from nstance.kube.api.status import Cause
from nstance.kube.port import Object

_NEVER_STORED = ("managedFields", "selfLink")


def new_object(served: Served, body: Object, *, uid: str, now: str, strict: bool = False) -> Object:
    """A new object, whose name and namespace are set."""
    resource = served.resource
    sent = _client_fields(metadata.decode(resource, body))
    meta = {**sent, "uid": uid, "creationTimestamp": now}
    if resource.custom or resource.generation:
        meta["generation"] = 1
    kept = _apply_schema(served, body, strict=strict)
    if served.version.status and not resource.keeps_status:
        kept.pop("status", None)
    kept = _with_metadata(served, kept, meta)
    _add_defaults(resource.id, kept)
    check(served, kept)
    return kept


def changed_object(served: Served, old: Object, body: Object, *, subresource: str = "", strict: bool = False) -> Object:
    """`old` after a write. Read-only fields stay; the result equals `old` if nothing changes."""
    resource = served.resource
    sent = _client_fields(metadata.decode(resource, body))
    before = old["metadata"]
    _check_identity(served, before, metadata.decode(resource, body))
    applied = _apply_schema(served, body, strict=strict)
    if subresource == "status":
        kept = {key: value for key, value in old.items() if key != "status"}
        if "status" in applied:
            kept["status"] = applied["status"]
        meta = before
    else:
        kept = applied
        if served.version.status:
            kept.pop("status", None)
            if "status" in old:
                kept["status"] = old["status"]
        owned = {name: values.copy(before[name]) for name in metadata.SERVER_OWNED if before.get(name) is not None}
        meta = {**sent, **owned, "resourceVersion": before["resourceVersion"]}
    kept = _with_metadata(served, kept, meta)
    if not subresource:
        _add_defaults(resource.id, kept)
    _check_finalizers(served, before, meta)
    check(served, kept)
    if served.version.schema is not None:
        causes = list(schema.find_forbidden_changes(old, kept, served.version.schema))
        if causes:
            raise status.invalid(resource.group, resource.kind, before["name"], causes)
    if "generation" in before and not values.is_same(_spec_fields(served, old), _spec_fields(served, kept)):
        kept["metadata"] = {**kept["metadata"], "generation": int(before["generation"]) + 1}
    return kept


def check(served: Served, body: Object) -> None:
    """Raises 422 with all problems."""
    resource = served.resource
    causes = list(metadata.find_faults(resource, body["metadata"]))
    if resource.id in core_schemas.SCHEMAS:
        causes += schema.find_faults(body, core_schemas.SCHEMAS[resource.id])
    if resource.id == crd_objects.ID and not causes:
        causes += crd_objects.find_faults(body)
    if served.version.schema is not None:
        causes += schema.find_faults(body, served.version.schema)
    causes = causes or scaling.find_faults(served, body)
    if resource.id == "secrets" and not causes:
        causes += _secret_faults(body.get("data") or {})
    if causes:
        raise status.invalid(resource.group, resource.kind, body["metadata"].get("name", ""), causes)


def _client_fields(meta: Object) -> Object:
    ignored = (*metadata.SERVER_OWNED, *_NEVER_STORED)
    return {name: values.copy(value) for name, value in meta.items() if name not in ignored and value is not None}


def _with_metadata(served: Served, body: Object, meta: Object) -> Object:
    rest = {key: value for key, value in body.items() if key not in ("apiVersion", "kind", "metadata")}
    return {"apiVersion": served.resource.stored_as, "kind": served.resource.kind, "metadata": meta, **rest}


def _apply_schema(served: Served, body: Object, *, strict: bool) -> Object:
    kept: Object = values.copy(body)
    if served.version.schema is not None:
        kept, unknown = schema.prune(kept, served.version.schema)
        if unknown and strict:
            listed = ", ".join(f'unknown field "{each}"' for each in unknown)
            raise status.bad_request(f"strict decoding error: {listed}")
        kept = schema.apply_defaults(kept, served.version.schema)
    return kept


def _spec_fields(served: Served, body: Object) -> Object:
    """The fields whose changes increase the generation: all but metadata and a status subresource."""
    excluded = {"apiVersion", "kind", "metadata", *(["status"] if served.version.status else [])}
    return {key: value for key, value in body.items() if key not in excluded}


def _check_identity(served: Served, before: Object, sent: Object) -> None:
    for field in ("name", "namespace"):
        if sent.get(field, before.get(field)) != before.get(field):
            wanted = before.get(field, "")
            message = f"the {field} of the object ({sent[field]}) does not match the {field} on the URL ({wanted})"
            raise status.bad_request(message)
    resource, name = served.resource, before["name"]
    if sent.get("uid", before["uid"]) != before["uid"]:
        why = f"Precondition failed: UID in precondition: {sent['uid']}, UID in object meta: {before['uid']}"
        raise status.conflict(resource.group, resource.plural, name, why)
    if sent.get("resourceVersion") and sent["resourceVersion"] != before["resourceVersion"]:
        raise status.conflict(resource.group, resource.plural, name)


def _check_finalizers(served: Served, before: Object, after: Object) -> None:
    if not before.get("deletionTimestamp"):
        return
    added = sorted(set(after.get("finalizers") or ()) - set(before.get("finalizers") or ()))
    if added:
        text = f"Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers {added}"
        cause = Cause("metadata.finalizers", text, "FieldValueForbidden")
        raise status.invalid(served.resource.group, served.resource.kind, before["name"], [cause])


def _secret_faults(data: Object) -> list[Cause]:
    return [
        Cause(f"data[{key}]", "Invalid value: must be base64", "FieldValueInvalid")
        for key, value in data.items()
        if isinstance(value, str) and not _is_base64(value)
    ]


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def _add_defaults(resource: str, body: Object) -> None:
    """Adds the defaults of core kinds."""
    if resource == "secrets":
        written = body.pop("stringData", None)
        if isinstance(written, dict) and isinstance(body.get("data") or {}, dict):
            encoded = {key: base64.b64encode(str(value).encode()).decode() for key, value in written.items()}
            body["data"] = {**(body.get("data") or {}), **encoded}
        body.setdefault("type", "Opaque")
    elif resource == "namespaces":
        body.setdefault("spec", {"finalizers": ["kubernetes"]})
        body.setdefault("status", {"phase": "Active"})
        labels = body["metadata"].setdefault("labels", {})
        labels["kubernetes.io/metadata.name"] = body["metadata"]["name"]
    elif resource == "pods":
        body.setdefault("status", {"phase": "Pending"})
