"""Whose a VM is, and which instance: in its tags, and in its notes from the first moment on.

A clone takes a name and notes, but no tags. So a VM that was cloned and not configured yet is recognized by its notes. Of a
node that is offline the cluster knows nothing but the tags.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from nstance.model.ids import ClusterId, GroupName, InstanceId, ShardId, TenantId
from nstance.providers import port

MANAGED = "nstance"
NEW = "nstance-new"  # it was never started: a repeated create finishes it
_PREFIX = {
    "cluster": "nstance-cluster-",
    "shard": "nstance-shard-",
    "tenant": "nstance-tenant-",
    "group": "nstance-group-",
}
_ID_PREFIX = "nstance-id-"
_VALID_TAG = re.compile(r"[a-z0-9_][a-z0-9_+.-]*")
_NOTES_MARK = "nstance: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    cluster: ClusterId | None = None
    shard: ShardId | None = None
    tenant: TenantId | None = None
    group: GroupName | None = None

    @property
    def is_known(self) -> bool:
        return self.cluster is not None and self.shard is not None

    def owned_by(self, scope: port.Scope) -> bool:
        return (self.cluster, self.shard) == (scope.cluster, scope.shard)


def owner_of(scope: port.Scope, request: port.CreateRequest) -> Owner:
    return Owner(cluster=scope.cluster, shard=scope.shard, tenant=request.tenant, group=request.group)


def tags(owner: Owner, id: InstanceId, *, is_new: bool, extra: Sequence[str] = ()) -> str:
    """Reserved tags win over the user's."""
    own = [MANAGED, f"{_ID_PREFIX}{id}", *([NEW] if is_new else [])]
    for name, prefix in _PREFIX.items():
        tag = f"{prefix}{getattr(owner, name)}"
        if _VALID_TAG.fullmatch(tag):  # others are in the notes only
            own.append(tag)
    users = [tag for tag in extra if tag != NEW and not tag.startswith((_ID_PREFIX, *_PREFIX.values()))]
    return ";".join(dict.fromkeys([*own, *users]))


def from_tags(text: str) -> Owner:
    values: dict[str, str] = {}
    for tag in _split(text):
        for name, prefix in _PREFIX.items():
            if tag.startswith(prefix):
                values[name] = tag.removeprefix(prefix)
    return _owner(values)


def is_new(text: str) -> bool:
    return NEW in _split(text)


def id_of(text: str) -> str:
    """The name of the VM by its tags; empty if they do not say."""
    return next((tag.removeprefix(_ID_PREFIX) for tag in _split(text) if tag.startswith(_ID_PREFIX)), "")


def _split(text: str) -> list[str]:
    return re.split(r"[;, ]+", text)


def notes(owner: Owner, request: port.CreateRequest) -> str:
    values = {
        "cluster": owner.cluster,
        "shard": owner.shard,
        "tenant": owner.tenant,
        "group": owner.group,
        "kind": request.kind,
        "template": request.template,
    }
    return f"{_NOTES_MARK}{json.dumps(values, sort_keys=True)}"


def from_notes(text: str) -> Owner:
    for line in text.splitlines():
        if line.startswith(_NOTES_MARK):
            try:
                values = json.loads(line.removeprefix(_NOTES_MARK))
            except ValueError:
                continue
            if isinstance(values, dict):
                return _owner({name: str(value) for name, value in values.items() if value})
    return Owner()


def _owner(values: dict[str, str]) -> Owner:
    return Owner(
        cluster=ClusterId(values["cluster"]) if "cluster" in values else None,
        shard=ShardId(values["shard"]) if "shard" in values else None,
        tenant=TenantId(values["tenant"]) if "tenant" in values else None,
        group=GroupName(values["group"]) if "group" in values else None,
    )
