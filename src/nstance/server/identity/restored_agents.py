"""Agents whose certificate is newer than the shard's records, as after a restored backup.

The certificate was signed by the cluster's CA for exactly this instance and tenant, and is handed out only to an agent
that has registered. So an agent without a record makes its VM a candidate for adoption, and a record that does not know
of the registration learns of it.
"""

import base64
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


async def recognize_agent(shard: Shard, connection: Connection) -> None:
    """To be called before an agent is admitted. Raises journal.Deposed, shard.Overloaded, PERMISSION_DENIED."""
    who = connection.identity
    assert isinstance(who, names.Agent)
    instance = shard.instances.get(who.id)
    if instance is not None and (instance.tenant != who.tenant or instance.state not in _UNREGISTERED):
        return
    agent = _identity(who, connection)
    if agent is None:
        return
    owner = shard.owner_of_key(agent.public_key)
    if owner is not None and owner != who.id:
        message = f"the certificate of {who.id} has the key of {owner}, and was refused"
        log.warning(message)
        shard.event_log.record(GroupKey(who.tenant, GroupName("")), ReasonCode.SECURITY, message)
        raise status.denied("this key belongs to another instance")
    if instance is not None:
        await shard.ask(
            ev.Registered(
                id=who.id,
                public_key=agent.public_key,
                certificate_serial=agent.certificate_serial,
                certificate_expires=agent.certificate_expires,
            )
        )
        return
    key = shard.unknown.present(agent)
    if key is not None:
        shard.look_again([key])


def _identity(who: names.Agent, connection: Connection) -> AgentIdentity | None:
    der = connection.certificate()
    if der is None:
        return None
    found = certificates.credential(der)
    return AgentIdentity(
        id=who.id,
        tenant=who.tenant,
        public_key=base64.b64encode(found.public_key).decode(),
        certificate_serial=found.serial,
        certificate_expires=found.expires,
    )
