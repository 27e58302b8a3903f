"""What instances are made from and has to be looked up first: images, subnets, userdata, the agent."""

from collections.abc import Callable

from nstance.model.ids import GroupKey
from nstance.objects.port import ObjectStore
from nstance.providers.port import Instances, capabilities_of
from nstance.server.cache.cache import Cache
from nstance.server.cloud.images import Images
from nstance.server.cloud.provider_calls import ProviderCalls
from nstance.server.cloud.subnets import Subnets
from nstance.server.config.active_config import ActiveConfig, ConfigChange
from nstance.server.config.configuration import Configuration
from nstance.server.leader.earlier_revisions import EarlierRevisions
from nstance.server.workload.agent_download import AgentDownload
from nstance.server.workload.userdata_download import UserdataDownload


class Supplies:
    """Of one shard during one term."""

    def __init__(
        self,
        provider: Instances,
        calls: ProviderCalls,
        active_config: ActiveConfig,
        earlier: EarlierRevisions,
        *,
        store: ObjectStore,
        cache: Cache | None,
    ) -> None:
        capabilities = capabilities_of(provider)
        self.images = Images(
            capabilities.images,
            calls=calls,
            interval=lambda: active_config.shard_settings.image_refresh_interval,
            on_change=self._notify,
            cache=cache,
        )
        self.subnets = Subnets(capabilities.subnet_capacity, calls)
        self.userdata = UserdataDownload(calls.waits, clock=calls.clock, on_change=self._notify, cache=cache)
        self.agent = AgentDownload(store, clock=calls.clock, on_change=self._notify)
        self.uses_userdata = provider.traits.reads_userdata
        self._subscribers: list[Callable[[], None]] = []
        self._active_config = active_config
        self._earlier = earlier
        self._configure(active_config.configuration)

    def subscribe(self, subscriber: Callable[[], None]) -> None:
        """It is called when an image or userdata was found or changed, or when the reason why it is missing changed."""
        self._subscribers.append(subscriber)

    def on_config_change(self, change: ConfigChange) -> None:
        self._configure(change.after)

    def on_revision_read(self, key: GroupKey) -> None:
        self._configure(self._active_config.configuration)

    def _notify(self) -> None:
        for subscriber in self._subscribers:
            subscriber()

    def _configure(self, configuration: Configuration) -> None:
        settings, groups = configuration.settings, configuration.groups.values()
        self.images.configure(settings.images, kind=settings.shard.infra.provider)
        self.subnets.configure(resolved.group for resolved in groups)
        agent = settings.agent
        archs = {resolved.arch for resolved in groups} if self.uses_userdata and agent.object else ()
        self.agent.configure(agent.place_for(arch) for arch in sorted(archs))
        # A group may have to make instances of an earlier revision again.
        templates = [resolved.spec.template for resolved in groups] + [each.template for each in self._earlier.specs()]
        specs = [template.userdata for template in templates] if self.uses_userdata else []
        self.userdata.configure(
            dict.fromkeys(spec.content for spec in specs if spec is not None and spec.source == "url"),
            private_hosts=settings.shard.userdata_hosts,
        )
