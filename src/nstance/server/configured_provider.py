"""Opens the provider that the configuration names, and load balancers that need none."""

import contextlib
import functools

from nstance.clock import Clock
from nstance.config.model.settings import Settings
from nstance.model.ids import ClusterId, ShardId
from nstance.providers import errors
from nstance.providers.member_lists.files import MemberFiles
from nstance.providers.member_lists.lists import MemberLists
from nstance.providers.member_lists.webhooks import Webhooks
from nstance.providers.port import FixedAddress, Instances, Scope
from nstance.providers.registry import Place, open_provider
from nstance.secretstore import errors as secrets
from nstance.secretstore.port import SecretStore
from nstance.server.errors import FatalError
from nstance.server.leader.environment import OpenBalancers
from nstance.server.options import Options


def open_configured(
    settings: Settings, shard: ShardId, options: Options, clock: Clock, secret_store: SecretStore | None = None
) -> Instances:
    """Raises FatalError. The caller closes it."""
    try:
        return open_provider(
            settings.shard.infra.provider,
            scope=Scope(cluster=ClusterId(settings.cluster.id), shard=shard),
            options=settings.shard.infra.options,
            cachedir=options.cachedir,
            clock=clock,
            place=_place(settings, options, secret_store),
        )
    except errors.ProviderError as problem:
        raise FatalError(f"the provider cannot be opened: {problem}") from problem


def open_balancers(secret_store: SecretStore, clock: Clock, opened: contextlib.AsyncExitStack) -> OpenBalancers:
    """Load balancers of all kinds: webhooks and files beside those of the provider."""
    webhooks, files = Webhooks(functools.partial(read_secret, secret_store), clock), MemberFiles(clock)
    opened.push_async_callback(webhooks.close)
    return lambda cloud, records: MemberLists(webhooks, files, records, cloud)


async def read_secret(secret_store: SecretStore, name: str) -> bytes:
    """A secret that calls to a load balancer or provider need. Raises ProviderError."""
    try:
        return await secret_store.get(name)
    except (secrets.UnavailableError, TimeoutError) as problem:
        raise errors.UnavailableError(f"failed to read the secret {name!r}: {problem or 'timed out'}") from problem
    except secrets.SecretError as problem:
        raise errors.PermanentError(f"failed to read the secret {name!r}: {problem}", parameter="secret") from problem


def _place(settings: Settings, options: Options, secret_store: SecretStore | None) -> Place:
    network = settings.shard.leader_network
    return Place(
        server=options.id,
        region=settings.shard.infra.region,
        zone=settings.shard.infra.zone,
        leader_address=FixedAddress(network.ip, network.ip6, network.interface_id) if network is not None else None,
        read_secret=functools.partial(read_secret, secret_store) if secret_store is not None else None,
    )
