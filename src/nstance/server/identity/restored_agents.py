"""Recognizes agents whose certificate is newer than the shard's records, as after a restored backup.

The cluster's CA signed the certificate for exactly this instance and tenant, and only a registered agent receives one. So
the VM of an agent without a record becomes a candidate for adoption, and a record without the registration is completed.
"""

import logging

from nstance.model import events as ev
from nstance.model.decision import ReasonCode
from nstance.model.ids import GroupKey, GroupName
from nstance.model.instance import State
from nstance.model.vm import AgentIdentity
from nstance.pki import names
from nstance.pki import peer as certificates
from nstance.server.state.shard import Shard
from nstance.wire import status
from nstance.wire.peer import Connection

log = logging.getLogger(__name__)

_UNREGISTERED = frozenset({State.PENDING, State.STARTING})


def recognize_agent(shard: Shard, connection: Connection) -> ev.Registered | None:
    """Call this before an agent is admitted. Returns what the shard must know first. Raises PERMISSION_DENIED."""
    name = connection.identity
    assert isinstance(name, names.Agent)
    instance = shard.instances.get(name.id)
    if instance is not None and (instance.tenant != name.tenant or instance.state not in _UNREGISTERED):
        return None
    agent = _agent_identity(name, connection)
    if agent is None:
        return None
    owner = shard.owner_of_key(agent.public_key)
    if owner is not None and owner != name.id:
        message = f"connection of {name.id} rejected: its certificate has the key of {owner}"
        log.warning(message)
        shard.event_log.record(GroupKey(name.tenant, GroupName("")), ReasonCode.SECURITY, message)
        raise status.denied("this key belongs to another instance")
    if instance is not None:
        return ev.Registered(id=name.id, **agent.as_fields())
    key = shard.unknown.present(agent)
    if key is not None:
        shard.look_again([key])
    return None


def _agent_identity(name: names.Agent, connection: Connection) -> AgentIdentity | None:
    der = connection.certificate()
    if der is None:
        return None
    return AgentIdentity(id=name.id, tenant=name.tenant, **certificates.credential(der).as_fields())
