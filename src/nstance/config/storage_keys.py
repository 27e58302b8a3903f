"""The keys of all objects in storage. No other code spells them.

Each part is checked first: a tenant named `../other` must not reach the objects of another one. `prefix` is that of the
cluster storage. The server's own `--prefix` comes before all keys (`objects.wrapped`).
"""

import datetime
import re

from nstance.config.errors import quoted
from nstance.config.model import scalars
from nstance.model import ids
from nstance.objects.port import Key

CLUSTER = "cluster/"
SECRETS = "secret/"

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


def config(shard: ids.ShardId) -> Key:
    return _shard(shard, "config.jsonc")


def groups(shard: ids.ShardId) -> Key:
    return _shard(shard, "groups.jsonc")


def lease(shard: ids.ShardId) -> Key:
    return _shard(shard, "leader.json")


def journal_prefix(shard: ids.ShardId) -> str:
    return _shard(shard, "journal/")


def snapshot_prefix(shard: ids.ShardId) -> str:
    return _shard(shard, "snapshot/")


def revision_prefix(shard: ids.ShardId) -> str:
    return _shard(shard, "revision/")


def revision(shard: ids.ShardId, group: ids.GroupKey, *, infra_hash: str, runtime_hash: str) -> Key:
    """The spec of a group's revision. Its hashes are part of the key, so the object never changes."""
    hashes = ".".join(_plain(each.removeprefix("sha256:"))[:16] for each in (infra_hash, runtime_hash))
    return Key(f"{revision_prefix(shard)}{_name(group.tenant)}.{_name(group.name)}.{hashes}.json")


def group_of_revision(shard: ids.ShardId, key: str) -> ids.GroupKey | None:
    """The inverse of `revision`; None for any other object."""
    parts = key.removeprefix(revision_prefix(shard)).split(".")
    if len(parts) != 5 or not ids.is_name(parts[0]) or not ids.is_name(parts[1]):
        return None
    return ids.GroupKey(ids.TenantId(parts[0]), ids.GroupName(parts[1]))


def certlog_prefix(shard: ids.ShardId) -> str:
    return _shard(shard, "certlog/")


def certlog(shard: ids.ShardId, *, tenant: ids.TenantId, at: datetime.datetime, instance: ids.InstanceId) -> Key:
    """The keys of a tenant sort by time."""
    if not ids.is_instance_id(instance):
        raise _bad("an instance ID", instance)
    moment = at.astimezone(datetime.UTC).strftime("%Y%m%dT%H%M%S%fZ")
    return Key(f"{certlog_prefix(shard)}{_name(tenant)}.{moment}.{instance}.json")


def ca_sealed(*, prefix: str = CLUSTER) -> Key:
    return Key(f"{_prefix(prefix)}ca.sealed")


def ca_certificate(*, prefix: str = CLUSTER) -> Key:
    return Key(f"{_prefix(prefix)}ca.crt")


def secret_prefix(*, prefix: str = CLUSTER, secrets: str = SECRETS) -> str:
    return _prefix(prefix) + _prefix(secrets)


def secret(name: str, *, prefix: str = CLUSTER, secrets: str = SECRETS) -> Key:
    return Key(secret_prefix(prefix=prefix, secrets=secrets) + _plain(name))


def operator_prefix(*, prefix: str = CLUSTER) -> str:
    return f"{_prefix(prefix)}operator/"


def operator(tenant: ids.TenantId, operator: ids.OperatorId, *, prefix: str = CLUSTER) -> Key:
    if not ids.is_instance_id(operator):
        raise _bad("an operator ID", operator)
    return Key(f"{operator_prefix(prefix=prefix)}{_name(tenant)}.{operator}.json")


def operator_nonce(jti: str, *, prefix: str = CLUSTER) -> Key:
    return Key(f"{_prefix(prefix)}operator-nonce/{_plain(jti)}")


def is_ours(key: str, *, cluster: str = CLUSTER) -> bool:
    """Whether an object is internal to Nstance. `cluster`: the prefix of the cluster storage."""
    return key.startswith(("shard/", CLUSTER, ".nstance/", *(cluster and [_prefix(cluster)]))) or (
        not cluster and key.startswith(("ca.", "nonce-key", SECRETS, "operator/", "operator-nonce/"))
    )


def check_users_own(key: str) -> str:
    """A key, perhaps with a template in it, that the configuration names. Raises the validator's error."""
    if is_ours(key) or key.startswith("/") or ".." in key.split("/"):
        raise scalars.invalid(f"expected an object of your own, outside cluster/ and shard/, found {quoted(key)}")
    return key


def _shard(shard: ids.ShardId, rest: str) -> Key:
    return Key(f"shard/{_name(shard)}/{rest}")


def _name(text: str) -> str:
    if not ids.is_name(text):
        raise _bad("a shard or tenant name", text)
    return text


def _plain(text: str) -> str:
    if not _PLAIN.fullmatch(text):
        raise _bad("a plain name of letters, digits, dots, hyphens and underscores", text)
    return text


def _prefix(text: str) -> str:
    return scalars.key_prefix(text)


def _bad(expected: str, found: str) -> ValueError:
    return ValueError(f"expected {expected} as part of a storage key, found {found[:80]!r}")
