"""The record of a registered operator, and its format in storage."""

import base64
import json
from dataclasses import asdict, dataclass

from nstance.authority import errors
from nstance.model import roles
from nstance.model.ids import ClusterId, OperatorId, TenantId
from nstance.objects.port import Key
from nstance.pki import keys, names

VERSION = 1
# With a role. Programs that know no roles reject such a registration, where they would take a viewer for an operator.
VERSION_WITH_ROLE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Contains all inputs of the certificate, so that it can be issued again, byte for byte."""

    cluster: ClusterId
    tenant: TenantId
    operator: OperatorId
    public_key: bytes
    serial: int
    issued: int
    expires: int
    jti: str = ""  # of the nonce; empty if registered by an administrator
    revoked: int | None = None
    role: roles.Role = roles.Role.OPERATOR

    @property
    def identity(self) -> names.Operator:
        return names.Operator(self.cluster, self.tenant, self.operator, self.role)


def dump(registration: Registration) -> bytes:
    has_role = registration.role is not roles.Role.OPERATOR
    document = {
        "v": VERSION_WITH_ROLE if has_role else VERSION,
        **asdict(registration),
        "public_key": base64.b64encode(registration.public_key).decode(),
        "serial": f"{registration.serial:032x}",
    }
    del document["role"]
    if has_role:
        document["role"] = registration.role.value
    return json.dumps(document, indent=2).encode()


def load(body: bytes, *, key: Key, cluster: ClusterId) -> Registration:
    """Raises UnreadableError, WrongClusterError."""
    try:
        document = json.loads(body)
        version = document["v"]
        if version not in (VERSION, VERSION_WITH_ROLE):
            raise errors.UnreadableError(
                f"{key} has version {version!r}, this program supports version {VERSION_WITH_ROLE}; upgrade it"
            )
        identity = names.parse_uri(
            f"{names.SCHEME}://{document['cluster']}/operator/{document['tenant']}/{document['operator']}"
        )
        public_key = base64.b64decode(document["public_key"], validate=True)
        keys.check_point(public_key)
        numbers = (document["issued"], document["expires"], document["revoked"] or 0)
        if not isinstance(identity, names.Operator) or not all(type(number) is int for number in numbers):
            raise ValueError("not a registration")
        registration = Registration(
            cluster=identity.cluster,
            tenant=identity.tenant,
            operator=identity.id,
            public_key=public_key,
            serial=int(document["serial"], 16),
            issued=document["issued"],
            expires=document["expires"],
            jti=str(document["jti"]),
            revoked=document["revoked"],
            role=roles.Role(document["role"]) if version == VERSION_WITH_ROLE else roles.Role.OPERATOR,
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise errors.UnreadableError(f"{key} is damaged: {_describe(error)}; restore it from a backup") from error
    if registration.cluster != cluster:
        raise errors.WrongClusterError(f"{key} belongs to cluster {registration.cluster}, expected {cluster}")
    return registration


def _describe(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"expected JSON, found an error in line {error.lineno}, column {error.colno} ({error.msg})"
    if isinstance(error, KeyError):
        return f"expected the field {error.args[0]}, found none"
    return f"expected an operator's registration, found other content ({error})"
