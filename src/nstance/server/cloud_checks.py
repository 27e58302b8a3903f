"""`nstance-server --validate --online`: whether the cloud has what the configuration names, and allows what servers do.

Every fault is found at once, with its path in the configuration. Nothing is changed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from nstance.config.checks import warnings as warning
from nstance.config.checks.problems import ProblemCollector
from nstance.config.jsonc import Path
from nstance.config.model.settings import Settings
from nstance.config.resolve import Resolved
from nstance.model.ids import GroupKey
from nstance.providers import errors
from nstance.providers.member_lists.webhooks import Webhooks
from nstance.providers.port import (
    CloudPlan,
    Images,
    Instances,
    LoadBalancer,
    PlannedLaunch,
    Webhook,
    capabilities_of,
)
from nstance.server.cloud.configured_balancers import configured_balancers
from nstance.server.cloud.images import image_query
from nstance.server.workload import rendering

CALL_TIMEOUT_SECONDS = 60.0
CONCURRENT_CALLS = 8
_UNKNOWN_IMAGE = ""

Groups = Mapping[GroupKey, Resolved]


async def find_cloud_faults(
    settings: Settings, groups: Groups, findings: ProblemCollector, provider: Instances
) -> None:
    can = capabilities_of(provider)
    slots = asyncio.Semaphore(CONCURRENT_CALLS)

    async def look_up(path: Path, what: str, get: Callable[[], Awaitable[object]]) -> object:
        """None after a fault."""
        try:
            async with slots, asyncio.timeout(CALL_TIMEOUT_SECONDS):
                return await get()
        except errors.NotFoundError as problem:
            findings.add(path, f"there is no {what}: {problem}")
        except (errors.ProviderError, TimeoutError) as problem:
            findings.add(path, f"failed to look for the {what}: {problem or 'timed out'}")
        return None

    lookups = []
    balancers = can.load_balancers
    if balancers is not None:
        for name, balancer in settings.load_balancers.items():
            for number, arn in enumerate(balancer.target_group_arns):
                one = LoadBalancer(name, (arn,))
                path: Path = ("load_balancers", name, "target_group_arns", number)
                lookups.append(look_up(path, "target group", lambda one=one: balancers.list_targets(one)))  # type: ignore[misc]
            if balancer.instance_group_name:
                group = LoadBalancer(name, instance_group_name=balancer.instance_group_name)
                path = ("load_balancers", name, "instance_group_name")
                lookups.append(look_up(path, "instance group", lambda group=group: balancers.list_targets(group)))  # type: ignore[misc]
    await asyncio.gather(*lookups)
    images = await _images(settings, can.images, look_up)
    if can.preflight is None:
        return
    plan = CloudPlan(
        launches=_launches(settings, groups, findings, images),
        subnet_pools=settings.shard.subnet_pools,
        zone=settings.shard.infra.zone,
    )
    try:
        async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
            for fault in await can.preflight.preflight(plan):
                findings.add(fault.path, fault.text)
    except (errors.ProviderError, TimeoutError) as problem:
        findings.add(("shard", "infra"), f"failed to check the provider: {problem or 'timed out'}")


async def find_webhook_faults(settings: Settings, findings: ProblemCollector, webhooks: Webhooks) -> None:
    """Load balancers whose service does not list its members, or whose secret is missing."""

    async def check(name: str, webhook: Webhook) -> None:
        try:
            await webhooks.read(webhook)
        except errors.ProviderError as problem:
            findings.add(("load_balancers", name), f"failed to list the members: {problem}")

    asked = [
        (each.name, each.webhook) for each in configured_balancers(settings, of_cloud=False) if each.webhook is not None
    ]
    await asyncio.gather(*(check(name, webhook) for name, webhook in asked))


LookUp = Callable[[Path, str, Callable[[], Awaitable[object]]], Awaitable[object]]


async def _images(settings: Settings, finder: Images | None, look_up: LookUp) -> dict[str, str]:
    """IDs by name; empty for an image that was not found."""
    kind = settings.shard.infra.provider
    asked = {
        name: image_query(image)
        for name, image in settings.images.items()
        if (image.filters or image.ssm_parameter) and image.provider in (None, kind)
    }
    if finder is None:
        asked = {}
    found = await asyncio.gather(
        *(
            look_up(("images", name), f"image {name}", lambda query=query: finder.find_image(query))  # type: ignore[misc,union-attr]
            for name, query in asked.items()
        )
    )
    ids = {name: str(id or _UNKNOWN_IMAGE) for name, id in zip(asked, found, strict=True)}
    return {name: ids.get(name) or image.fallback for name, image in settings.images.items()}


def _launches(
    settings: Settings, groups: Groups, findings: ProblemCollector, images: Mapping[str, str]
) -> list[PlannedLaunch]:
    """One of each kind. A group whose image was not found cannot be tried, and has its fault already."""
    found: list[PlannedLaunch] = []
    for resolved in groups.values():
        group = resolved.group
        values = {**warning.sample(settings, resolved), "Image": images}
        if rendering.unknown_images(rendering.texts(resolved.args), {name: id or None for name, id in images.items()}):
            continue
        try:
            args = rendering.render_value(resolved.args, values, "args")
        except rendering.RenderError as problem:
            findings.add(("templates", group.template, "args"), str(problem))
            continue
        assert isinstance(args, Mapping)
        launch = PlannedLaunch(
            template=group.template,
            instance_types=group.instance_types,
            markets=group.markets,
            subnets=group.subnets,
            args=args,
        )
        if launch not in found:
            found.append(launch)
    return found
