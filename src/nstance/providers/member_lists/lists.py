"""Load balancers of all kinds behind one port: those of the cloud, webhooks and files.

A webhook and a file work with every provider. On-prem there is no other load balancer.
"""

from collections.abc import Callable, Mapping

from nstance.model.ids import ProviderId
from nstance.model.instance import Instance
from nstance.providers import errors, port
from nstance.providers.member_lists import entries
from nstance.providers.member_lists.files import MemberFiles
from nstance.providers.member_lists.webhooks import Webhooks
from nstance.providers.port import LoadBalancer


class MemberLists(port.LoadBalancers):
    """`records`: instances by provider ID. `cloud`: for all other load balancers."""

    def __init__(
        self,
        webhooks: Webhooks,
        files: MemberFiles,
        records: Callable[[], Mapping[ProviderId, Instance]],
        cloud: port.LoadBalancers | None,
    ) -> None:
        self._webhooks, self._files, self._records, self._cloud = webhooks, files, records, cloud

    async def list_targets(self, balancer: LoadBalancer) -> Mapping[ProviderId, bool]:
        if balancer.webhook is None and not balancer.file:
            return await self._of_cloud(balancer).list_targets(balancer)
        found = await self._read(balancer)
        records = self._records()
        # A member with other addresses than its record has is registered again.
        return {
            id: id not in records or _is_current(entry, entries.to_entry(balancer, records[id]))
            for id, entry in found.items()
            if not _is_draining(entry)
        }

    async def is_draining(self, balancer: LoadBalancer, provider_id: ProviderId) -> bool:
        if balancer.webhook is not None:
            return _is_draining((await self._read(balancer)).get(provider_id) or {})
        return False if balancer.file else await self._of_cloud(balancer).is_draining(balancer, provider_id)

    async def register_target(self, balancer: LoadBalancer, provider_id: ProviderId) -> None:
        if balancer.webhook is None and not balancer.file:
            await self._of_cloud(balancer).register_target(balancer, provider_id)
            return
        found = self._records().get(provider_id)
        if found is None or not (found.ip4 or found.ip6 or found.hostname):
            raise errors.UnavailableError(f"expected the address of {provider_id}, found none yet")
        entry = entries.to_entry(balancer, found)
        if balancer.webhook is not None:
            await self._webhooks.change(balancer, balancer.webhook, "register", entry)
        else:
            await self._files.put(balancer.file, provider_id, entry)

    async def deregister_target(self, balancer: LoadBalancer, provider_id: ProviderId) -> None:
        if balancer.webhook is not None:
            found = self._records().get(provider_id)
            entry = entries.to_entry(balancer, found) if found is not None else {"provider_id": provider_id}
            await self._webhooks.change(balancer, balancer.webhook, "deregister", entry)
        elif balancer.file:
            await self._files.remove(balancer.file, provider_id)
        else:
            await self._of_cloud(balancer).deregister_target(balancer, provider_id)

    async def _read(self, balancer: LoadBalancer) -> Mapping[ProviderId, Mapping[str, object]]:
        if balancer.webhook is not None:
            return await self._webhooks.read(balancer.webhook)
        return await self._files.read(balancer.file)

    def _of_cloud(self, balancer: LoadBalancer) -> port.LoadBalancers:
        if self._cloud is None:
            raise errors.PermanentError(f"load balancer {balancer.name}: the shard's provider has no load balancers")
        return self._cloud


def _is_current(entry: Mapping[str, object], expected: Mapping[str, object]) -> bool:
    """Fields that the list does not show are not compared."""
    return all(entry.get(key, value) == value for key, value in expected.items())


def _is_draining(entry: Mapping[str, object]) -> bool:
    return entry.get("draining") is True
