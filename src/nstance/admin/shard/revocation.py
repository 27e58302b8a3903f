"""Tells running shards that an operator was revoked, so that they reject it at once."""

from nstance.admin import errors
from nstance.admin.client import Client
from nstance.admin.shard import fanout
from nstance.admin.shard_flags import ShardSelection
from nstance.model.ids import OperatorId, TenantId
from nstance.model.roles import Role


def notify(selection: ShardSelection, *, tenant: TenantId, operator: OperatorId) -> fanout.Answers[object]:
    """It is revoked in storage already, where shards that are not reached find it."""

    async def call(client: Client) -> object:
        identity = client.identity
        if identity.who.tenant != tenant and identity.who.role is not Role.ADMIN:
            raise errors.CommandError(
                f"the identity in {identity.directory} is of tenant {identity.who.tenant}, expected {tenant}; "
                "the shard rejects the operator within a minute"
            )
        return await client.in_tenant(tenant).call("RevokeOperator", operator_id=operator)

    return fanout.call_shards(selection, call)
