"""Identities of servers, agents and operators, and their one encoding.

An identity is a URI in a certificate, and this file alone knows its format. All parts are ASCII by the rules of
`model.ids`, so there are no look-alikes, escapes or dots.
"""

from dataclasses import dataclass, field
from enum import Enum

from nstance.model import ids, roles
from nstance.model.ids import ClusterId, InstanceId, OperatorId, ServerId, ShardId, TenantId

SCHEME = "nstance"
MAX_URI = 160


class IdentityError(ValueError):
    """The text or certificate is not an identity. The message says why; it is for the log."""


class Role(Enum):
    SERVER = "server"
    AGENT = "agent"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Server:
    cluster: ClusterId
    shard: ShardId
    id: ServerId


@dataclass(frozen=True, slots=True)
class Agent:
    cluster: ClusterId
    tenant: TenantId
    id: InstanceId


@dataclass(frozen=True, slots=True)
class Operator:
    cluster: ClusterId
    tenant: TenantId
    id: OperatorId
    role: roles.Role = field(default=roles.Role.OPERATOR, compare=False)  # what it may do, not who it is


Identity = Server | Agent | Operator


def role(identity: Identity) -> Role:
    match identity:
        case Server():
            return Role.SERVER
        case Agent():
            return Role.AGENT
        case Operator():
            return Role.OPERATOR


def common_name(identity: Identity) -> str:
    return identity.cluster if isinstance(identity, Operator) else identity.id


def organization(identity: Identity) -> str:
    """The tenant. Servers belong to no tenant; theirs is the shard."""
    return identity.shard if isinstance(identity, Server) else identity.tenant


def uri(identity: Identity) -> str:
    """Raises IdentityError for parts that `parse_uri` would reject."""
    text = f"{SCHEME}://{identity.cluster}/{role(identity).value}/{organization(identity)}/{identity.id}"
    if parse_uri(text) != identity:
        raise IdentityError(f"not an identity: {text!r}")
    return text


def parse_uri(text: str) -> Identity:
    parts = text.split("/") if len(text) <= MAX_URI else []
    if len(parts) != 6 or parts[0] != f"{SCHEME}:" or parts[1] != "":
        raise IdentityError(f"expected {SCHEME}://cluster/role/owner/id, found {text[:MAX_URI]!r}")
    cluster, kind, owner, id = parts[2:]
    if not ids.is_name(cluster) or not ids.is_name(owner):
        raise IdentityError(f"the cluster and the owner must be names, found {text!r}")
    if kind == Role.SERVER.value and ids.is_name(id):
        return Server(ClusterId(cluster), ShardId(owner), ServerId(id))
    if kind == Role.AGENT.value and is_agent_id(id):
        return Agent(ClusterId(cluster), TenantId(owner), InstanceId(id))
    if kind == Role.OPERATOR.value and is_operator_id(id):
        return Operator(ClusterId(cluster), TenantId(owner), OperatorId(id))
    raise IdentityError(f"unknown role, or an ID that does not fit it: {text!r}")


def is_agent_id(text: str) -> bool:
    return ids.is_instance_id(text) and not is_operator_id(text)


def is_operator_id(text: str) -> bool:
    return ids.is_instance_id(text) and ids.kind_of(InstanceId(text)) == ids.OPERATOR_KIND


def authority_uri(cluster: ClusterId) -> str:
    """Names the cluster in a CA certificate. Not an identity: `parse_uri` rejects it."""
    return f"{SCHEME}://{cluster}/ca"


def parse_authority_uri(text: str) -> ClusterId:
    cluster = text.removeprefix(f"{SCHEME}://").removesuffix("/ca")
    if not ids.is_name(cluster) or authority_uri(ClusterId(cluster)) != text:
        raise IdentityError(f"expected {SCHEME}://cluster/ca, found {text[:MAX_URI]!r}")
    return ClusterId(cluster)
