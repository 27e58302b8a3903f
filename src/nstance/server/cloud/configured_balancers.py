"""The load balancers of a configuration, as providers take them."""

from nstance.config.model.load_balancers import MEMBER_LISTS
from nstance.config.model.settings import Settings
from nstance.providers.port import LoadBalancer, Webhook


def configured_balancers(settings: Settings, *, of_cloud: bool) -> list[LoadBalancer]:
    """Webhooks and files, and those of the shard's provider if it can be asked for them."""
    kind = settings.shard.infra.provider
    usable = (*MEMBER_LISTS, kind) if of_cloud else MEMBER_LISTS
    return [
        LoadBalancer(
            name,
            each.target_group_arns,
            each.instance_group_name,
            webhook=Webhook(
                url=each.url,
                secret=each.secret or "",
                auth=each.auth,
                ca_file=each.ca_file,
                timeout=each.timeout,
            )
            if each.url
            else None,
            file=each.path,
            port=each.port,
        )
        for name, each in settings.load_balancers.items()
        if each.provider in usable
    ]
