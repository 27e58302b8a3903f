"""Where agents and operators find the servers of a shard."""

from dataclasses import dataclass

from nstance.config.addresses import Endpoints, Service, show


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertised:
    registration: str
    agent: str
    operator: str
    hosts: frozenset[str]  # of this server: nobody else may claim them


def advertised(endpoints: Endpoints) -> Advertised:
    hosts = {address.host for addresses in endpoints.advertise.values() for address in addresses}
    return Advertised(
        registration=show(endpoints.advertise[Service.REGISTRATION]),
        agent=show(endpoints.advertise[Service.AGENT]),
        operator=show(endpoints.advertise[Service.OPERATOR]),
        # On one machine servers and agents share their addresses.
        hosts=frozenset(h for h in hosts if not h.startswith("127.") and h not in ("::1", "localhost")),
    )
