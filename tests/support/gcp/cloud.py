"""All of Google's services that Nstance calls, in one stand-in."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from support.gcp.access import Access
from support.gcp.compute import Compute, Rules
from support.gcp.secrets import Secrets
from support.gcp.stand_in import PROJECT, ZONE, StandIn, serving
from support.gcp.storage import Buckets

SERVER = "server-1"


@dataclass(frozen=True, slots=True)
class Cloud:
    stand_in: StandIn
    compute: Compute
    buckets: Buckets
    secrets: Secrets


@contextlib.asynccontextmanager
async def google_cloud(rules: Rules | None = None) -> AsyncIterator[Cloud]:
    """The VM on which the servers of the test run exists. What Google's description forbids fails the test."""
    stand_in = StandIn()
    compute, buckets = Compute(stand_in, rules or Rules()), Buckets(stand_in)
    compute.install()
    Access(stand_in).install()
    buckets.install()
    secrets = Secrets(stand_in)
    secrets.install()
    compute.add_server(SERVER)
    stand_in.metadata |= {
        "project/project-id": PROJECT,
        "instance/name": SERVER,
        "instance/service-accounts/default/email": "server@proj-1.iam.gserviceaccount.com",
        "instance/zone": f"projects/1234/zones/{ZONE}",
    }
    async with serving(stand_in):
        yield Cloud(stand_in, compute, buckets, secrets)
    assert not stand_in.violations, stand_in.violations
