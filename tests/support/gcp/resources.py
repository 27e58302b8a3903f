"""What instances of Compute Engine belong to or are made of: instance groups, images, subnets, machine types."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from support.gcp.stand_in import PROJECT, REGION, ZONE, GoogleFault, Handler, Request

if TYPE_CHECKING:
    from support.gcp.compute import Compute

LINK = "https://www.googleapis.com/compute/v1/"

Json = dict[str, Any]


def handlers(cloud: "Compute") -> Mapping[str, Handler]:
    made = Resources(cloud)
    return {
        "compute.instanceGroups.addInstances": made._add_members,
        "compute.instanceGroups.removeInstances": made._remove_members,
        "compute.instanceGroups.listInstances": made._members,
        "compute.images.list": made._images,
        "compute.images.getFromFamily": made._family,
        "compute.images.get": made._image,
        "compute.subnetworks.get": made._subnet,
        "compute.machineTypes.get": made._type,
    }


def image(name: str, family: str, created: str, **more: Any) -> Json:
    link = f"{LINK}projects/{PROJECT}/global/images/{name}"
    shown = {"kind": "compute#image", "name": name, "family": family, "status": "READY", "creationTimestamp": created}
    return {**shown, "selfLink": link, **more}


@dataclass(frozen=True, slots=True)
class Resources:
    cloud: "Compute"

    async def _add_members(self, request: Request) -> Json:
        members, name = self._group(request), self._member(request)
        if (ZONE, name) not in self.cloud.instances:
            raise GoogleFault(404, "notFound", f"The resource '{name}' was not found")
        if name in members:
            raise GoogleFault(400, "memberAlreadyExists", f"Resource '{name}' is already a member")
        members.add(name)
        return dict(
            self.cloud.operate(
                "addInstances", f"zones/{ZONE}/instanceGroups/g", self.cloud.rules.update, lambda: None
            ).shown
        )

    async def _remove_members(self, request: Request) -> Json:
        members, name = self._group(request), self._member(request)
        if name not in members:
            raise GoogleFault(400, "memberNotFound", f"Resource '{name}' is not a member")
        members.discard(name)
        return dict(
            self.cloud.operate(
                "removeInstances", f"zones/{ZONE}/instanceGroups/g", self.cloud.rules.update, lambda: None
            ).shown
        )

    async def _members(self, request: Request) -> Json:
        links = [f"{LINK}projects/{PROJECT}/zones/{ZONE}/instances/{name}" for name in sorted(self._group(request))]
        items = [{"instance": link, "status": "RUNNING"} for link in links]
        return self.cloud.page(request, items, "compute#instanceGroupsListInstances")

    def _group(self, request: Request) -> set[str]:
        self.cloud.settle()
        if request.params["instanceGroup"] not in self.cloud.groups:
            raise GoogleFault(404, "notFound", f"The resource '{request.params['instanceGroup']}' was not found")
        return self.cloud.groups[request.params["instanceGroup"]]

    def _member(self, request: Request) -> str:
        return str(request.body["instances"][0]["instance"]).rpartition("/")[2]

    async def _images(self, request: Request) -> Json:
        return self.cloud.page(request, self.cloud.images, "compute#imageList")

    async def _family(self, request: Request) -> Json:
        family = [
            each
            for each in self.cloud.images
            if each["family"] == request.params["family"] and "deprecated" not in each
        ]
        if not family:
            raise GoogleFault(404, "notFound", "The resource was not found")
        return max(family, key=lambda each: str(each["creationTimestamp"]))

    async def _image(self, request: Request) -> Json:
        for each in self.cloud.images:
            if each["name"] == request.params["image"]:
                return each
        raise GoogleFault(404, "notFound", "The resource was not found")

    async def _subnet(self, request: Request) -> Json:
        name = request.params["subnetwork"]
        if request.params["region"] != REGION or name not in self.cloud.subnets:
            raise GoogleFault(404, "notFound", f"The resource '{name}' was not found")
        shown: Json = {"kind": "compute#subnetwork", "name": name}
        if request.params.get("views") == "WITH_UTILIZATION":
            free = {"totalAllocatedIp": "4", "totalFreeIp": str(self.cloud.subnets[name])}
            shown["utilizationDetails"] = {"ipv4Utilizations": [free, {**free, "rangeName": "pods"}]}
        return shown

    async def _type(self, request: Request) -> Json:
        if request.params["machineType"] not in self.cloud.types:
            raise GoogleFault(404, "notFound", f"The resource '{request.params['machineType']}' was not found")
        return {"kind": "compute#machineType", "name": request.params["machineType"]}
