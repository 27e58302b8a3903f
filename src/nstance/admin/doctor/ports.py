"""Whether this machine reaches the ports of a shard's leader."""

import asyncio
from collections.abc import Mapping

from nstance.admin.doctor.findings import Finding, Level
from nstance.config import addresses
from nstance.config.addresses import Service
from nstance.model.ids import ShardId
from nstance.objects import lease

CONNECT_SECONDS = 3.0

_USERS = {
    Service.HEALTH: "load balancers and monitoring",
    Service.ELECTION: "the other servers of the shard",
    Service.REGISTRATION: "instances",
    Service.OPERATOR: "operators and nstance-admin",
    Service.AGENT: "instances",
}


async def connect(host: str, port: int) -> str:
    """Empty if it could connect; otherwise why not."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return f"no answer within {CONNECT_SECONDS:.0f} s"
    except OSError as problem:
        return problem.strerror or str(problem)
    writer.close()
    return ""


async def check_ports(
    shard: ShardId, leader: lease.Holder, *, offset_from: int, ports: Mapping[Service, int]
) -> list[Finding]:
    """The lease names the leader's election address; its other ports are shifted like this one (--port-offset). This
    machine need not reach all of them, so a closed one is a warning."""
    if not leader.addresses:
        return []
    election = addresses.parse(leader.addresses[0])
    offset = election.port - offset_from
    wanted = {service: port + offset for service, port in ports.items()}
    problems = await asyncio.gather(*(connect(election.host, port) for port in wanted.values()))
    found = []
    for (service, port), problem in zip(wanted.items(), problems, strict=True):
        subject = f"server {leader.server}"
        name = f"{service.value} port {election.host}:{port}"
        if not problem:
            found.append(Finding(Level.OK, "port", subject, f"{name} is open"))
            continue
        advice = f"it must be open to {_USERS[service]}: check firewalls and security groups"
        found.append(Finding(Level.WARNING, "port", f"shard {shard}", f"{name} cannot be reached: {problem}", advice))
    return found
