"""What would fail on Google Cloud: credentials, permissions, the zone, and what launches name.

Nothing is changed: Google says which of a list of permissions the caller has, and everything else is looked up.
"""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence

from nstance.clouds.errors import NoAnswerError, NotSentError
from nstance.gcp.client import Answer
from nstance.gcp.endpoints import IAM, PROJECTS
from nstance.gcp.errors import GoogleError
from nstance.providers import errors
from nstance.providers.gcp.compute import Compute
from nstance.providers.gcp.launches import subnet_path
from nstance.providers.port import CloudPlan, Fault, FixedAddress, PlannedLaunch

CONCURRENT_CALLS = 8
_INFRA = ("shard", "infra")
PERMISSIONS = (
    "compute.disks.create",
    "compute.disks.setLabels",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.getSerialPortOutput",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.subnetworks.get",
    "compute.subnetworks.use",
    "compute.zoneOperations.get",
    "compute.zoneOperations.list",
)
_BY_ARGUMENT = {"NetworkTags": "compute.instances.setTags", "ServiceAccount": "compute.instances.setServiceAccount"}
_ADDRESS = ("compute.instances.updateNetworkInterface",)

Path = tuple[str | int, ...]


class LaunchChecks:
    def __init__(self, compute: Compute, address: FixedAddress | None) -> None:
        self._compute = compute
        self._address = address

    async def run(self, plan: CloudPlan) -> Sequence[Fault]:
        if fault := await self._zone():
            return [fault]  # every other call would only repeat it
        slots = asyncio.Semaphore(CONCURRENT_CALLS)

        async def bounded(check: Awaitable[list[Fault]]) -> list[Fault]:
            async with slots:
                return await check

        checks: list[Awaitable[list[Fault]]] = [self._permissions(plan)]
        project = await self._compute.project()
        for pool, names in plan.subnet_pools.items():
            for number, name in enumerate(names):
                path = subnet_path(name, project, self._compute.region)
                checks.append(
                    self._find(
                        "compute.subnetworks.get", path, f"subnet {name}", [("shard", "subnet_pools", pool, number)]
                    )
                )
        for name in dict.fromkeys(each for launch in plan.launches for each in launch.instance_types if each):
            users = dict.fromkeys(launch.template for launch in plan.launches if name in launch.instance_types)
            paths: list[Path] = [("templates", template, "instance_type") for template in users]
            checks.append(
                self._find("compute.machineTypes.get", f"{{zone}}/machineTypes/{name}", f"machine type {name}", paths)
            )
        for launch in plan.launches:
            for place, image in _images(launch):
                checks.append(self._image(image, ("templates", launch.template, "args", *place)))
            account = launch.args.get("ServiceAccount")
            if isinstance(account, str) and account:
                checks.append(self._account(account, ("templates", launch.template, "args", "ServiceAccount")))
        found = await asyncio.gather(*map(bounded, checks))
        return list(dict.fromkeys(fault for faults in found for fault in faults))

    async def _zone(self) -> Fault | None:
        zone = self._compute.zone
        try:
            await self._compute.call("compute.zones.get", "GET", f"zones/{zone}")
        except errors.NotFoundError as problem:
            return Fault(
                (*_INFRA, "zone"), f"there is no zone {zone}, or no project {await self._compute.project()}: {problem}"
            )
        except errors.ProviderError as problem:
            return Fault(_INFRA, f"failed to look for the zone {zone}: {problem}")
        return None

    async def _permissions(self, plan: CloudPlan) -> list[Fault]:
        wanted = [*PERMISSIONS, *(_ADDRESS if self._address is not None else ())]
        wanted += [one for name, one in _BY_ARGUMENT.items() if any(name in launch.args for launch in plan.launches)]
        project = await self._compute.project()
        try:
            answer = await self._compute.client.json(
                PROJECTS, "POST", f"projects/{project}:testIamPermissions", body={"permissions": wanted}
            )
        except (GoogleError, NotSentError, NoAnswerError) as problem:
            return [Fault(_INFRA, f"failed to check the permissions in the project {project}: {problem}")]
        missing = sorted(set(wanted) - set(answer.get("permissions") or ()))
        return [Fault(_INFRA, f"Google denies {each}: allow it to the server's service account") for each in missing]

    async def _image(self, image: str, path: Path) -> list[Fault]:
        if "/" not in image:
            return [Fault(path, f"expected an image such as projects/NAME/global/images/NAME, found {image!r}")]
        below = image[image.find("projects/") :] if "projects/" in image else image
        return await self._find("compute.images.get", below, f"image {below}", [path])

    async def _account(self, email: str, path: Path) -> list[Fault]:
        """That it exists, and that VMs may be given it."""
        if email == "default":
            return []
        permission = "iam.serviceAccounts.actAs"
        try:
            answer: Answer = await self._compute.client.json(
                IAM,
                "POST",
                f"projects/-/serviceAccounts/{email}:testIamPermissions",
                body={"permissions": [permission]},
            )
        except GoogleError as problem:
            text = f"there is no service account {email}" if problem.status == 404 else f"failed to look for {email}"
            return [Fault(path, f"{text}: {problem}")]
        except (NotSentError, NoAnswerError) as problem:
            return [Fault(path, f"failed to look for the service account {email}: {problem}")]
        if permission in (answer.get("permissions") or ()):
            return []
        return [Fault(path, f"Google denies {permission} on {email}: allow it to the server's service account")]

    async def _find(self, permission: str, path: str, what: str, paths: Sequence[Path]) -> list[Fault]:
        try:
            await self._compute.call(permission, "GET", path)
        except errors.NotFoundError as problem:
            return [Fault(each, f"there is no {what} in {self._compute.zone}: {problem}") for each in paths]
        except errors.ProviderError as problem:
            return [Fault(each, f"failed to look for the {what}: {problem}") for each in paths]
        return []


def _images(launch: PlannedLaunch) -> Iterator[tuple[Path, str]]:
    """What arguments name, and where."""
    image = launch.args.get("SourceImage")
    if isinstance(image, str) and image:
        yield ("SourceImage",), image
