"""Telling running shards that an operator was revoked, so that they need not find out."""

from nstance.admin import failures
from nstance.admin.client import Client
from nstance.admin.reach import Reach
from nstance.admin.shard import asking
from nstance.model.ids import OperatorId, TenantId


def tell(reach: Reach, *, tenant: TenantId, operator: OperatorId) -> asking.Answers[object]:
    """It is revoked in storage already; whoever is not reached here learns it from there."""

    async def one(client: Client) -> object:
        who = client.identity.who
        if who.tenant != tenant:
            raise failures.Refused(
                f"the identity in {client.identity.directory} is of tenant {who.tenant}, expected {tenant}; "
                "the shard refuses the operator within a minute"
            )
        return await client.call("RevokeOperator", operator_id=operator)

    return asking.ask(reach, one)
