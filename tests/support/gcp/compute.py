"""Compute Engine: instances and their operations. What Google's description of the API does not say is modelled here.

A changing call answers with an operation that is done later; `requestId` gives the same operation again, also a failed one;
a name is taken while its VM exists; a stock-out is an error inside a successful reply, and the VM that was visible until
then disappears.
"""

import asyncio
import itertools
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from support.gcp import filters, resources
from support.gcp.stand_in import PROJECT, REGION, ZONE, GoogleFault, Request, StandIn

LINK = resources.LINK
STOCK_OUT, STOCK_OUT_DETAILS = "ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
QUOTA, NO_ADDRESS, BROKEN = "QUOTA_EXCEEDED", "IP_SPACE_EXHAUSTED", "INTERNAL_ERROR"

Json = dict[str, Any]


@dataclass(slots=True)
class Operation:
    shown: Json
    due: float
    finish: Callable[[], None]


@dataclass(slots=True)
class Rules:
    """In seconds. `wait_limit`: how long one wait lasts, two minutes at Google."""

    insert: float = 0.02
    delete: float = 0.02
    update: float = 0.01
    wait_limit: float = 0.5
    page_size: int = 500
    delete_needs_finished_insert: bool = True
    operation_errors: list[str] = field(default_factory=list)  # of the next inserts
    warning: str = ""  # of listings: they are then partial
    capacity: dict[str, int] = field(default_factory=dict)  # by subnet or machine type: how many more fit

    def heal(self) -> None:
        self.operation_errors.clear()
        self.capacity.clear()


@dataclass(slots=True)
class Compute:
    stand_in: StandIn
    rules: Rules = field(default_factory=Rules)
    instances: dict[tuple[str, str], Json] = field(default_factory=dict)  # by zone and name
    operations: dict[str, Operation] = field(default_factory=dict)
    console: dict[str, str] = field(default_factory=dict)
    subnets: dict[str, int] = field(default_factory=lambda: {"subnet-1": 200, "subnet-2": 200})
    types: set[str] = field(default_factory=lambda: {"e2-small", "e2-medium", "n2-standard-4"})
    images: list[Json] = field(default_factory=list)
    groups: dict[str, set[str]] = field(default_factory=dict)
    made: Counter[str] = field(default_factory=Counter)  # how many VMs a name has had
    on_made: Callable[[str, Json], None] = lambda name, instance: None
    on_gone: Callable[[str], None] = lambda name: None
    _requests: dict[str, str] = field(default_factory=dict)
    _addresses: "itertools.count[int]" = field(default_factory=lambda: itertools.count(10))

    def install(self) -> None:
        self.images = self.images or [
            resources.image("debian-12-v20260101", "debian-12", "2026-01-01T00:00:00.000-07:00")
        ]
        self.stand_in.add(
            "compute.v1",
            {
                "compute.instances.insert": self._insert,
                "compute.instances.get": self._get,
                "compute.instances.list": self._list,
                "compute.instances.aggregatedList": self._aggregated,
                "compute.instances.delete": self._delete,
                "compute.instances.getSerialPortOutput": self._console,
                "compute.instances.updateNetworkInterface": self._update_interface,
                "compute.zoneOperations.wait": self._wait,
                "compute.zoneOperations.list": self._operations,
                "compute.zones.get": self._zone,
                **resources.handlers(self),
            },
        )

    # ---- what happens behind the provider's back

    def add_server(self, name: str, zone: str = ZONE) -> Json:
        """A VM that is not Nstance's."""
        return self._make({"name": name, "networkInterfaces": [{}]}, zone, status="RUNNING")

    def preempt(self, name: str) -> None:
        """Google takes a spot VM back."""
        self.settle()
        found = self.instances.get((ZONE, name))
        if found is None:
            return
        found["status"] = "STOPPING"
        action = found.get("scheduling", {}).get("instanceTerminationAction")

        def end() -> None:
            if action == "DELETE":
                self._end(ZONE, name)
            elif (ZONE, name) in self.instances:
                self.instances[ZONE, name]["status"] = "TERMINATED"

        made = self.operate("compute.instances.preempted", f"zones/{ZONE}/instances/{name}", 0.0, lambda: None)
        self.operate("compute.instances.stopping", f"zones/{ZONE}/instances/{name}", self.rules.delete, end)
        assert made

    def stop(self, name: str) -> None:
        self.settle()
        self.instances[ZONE, name]["status"] = "TERMINATED"

    def living(self) -> dict[str, Json]:
        """Nstance's VMs in the zone, by the stand-in's own books. A VM whose insert is not done is one."""
        self.settle()
        managed = {name: vm for (_, name), vm in self.instances.items() if vm.get("labels", {}).get("nstance-managed")}
        return {name: vm for name, vm in managed.items() if not vm.get("_ending")}

    def settle(self) -> None:
        """Finish the operations that are due."""
        now = time.monotonic()
        for operation in list(self.operations.values()):
            if operation.shown["status"] != "DONE" and operation.due <= now:
                operation.shown |= {"status": "DONE", "progress": 100, "endTime": _time()}
                operation.finish()

    # ---- instances

    async def _insert(self, request: Request) -> Json:
        self.settle()
        self.stand_in.check("compute.instances.create")
        zone, body = self.zone_of(request), dict(request.body)
        if known := self._known(request):
            return known
        name = body["name"]
        if (zone, name) in self.instances:
            raise GoogleFault(
                409, "alreadyExists", f"The resource 'projects/{PROJECT}/zones/{zone}/instances/{name}' already exists"
            )
        kind = body.get("machineType", "").rpartition("/")[2]
        if kind not in self.types:
            raise GoogleFault(
                400,
                "invalid",
                f"Invalid value for field 'resource.machineType': '{kind}' does not exist in zone '{zone}'.",
            )
        subnet = body["networkInterfaces"][0].get("subnetwork", "subnet-1").rpartition("/")[2]
        if subnet not in self.subnets:
            raise GoogleFault(
                400,
                "invalid",
                f"Invalid value for field 'resource.networkInterfaces[0].subnetwork': '{subnet}'.",
            )
        for disk in body.get("disks", ()):
            wanted = disk.get("initializeParams", {}).get("sourceImage", "")
            if wanted and wanted.rpartition("/")[2] not in {each["name"] for each in self.images}:
                raise GoogleFault(
                    400,
                    "invalid",
                    f"Invalid value for field 'resource.disks[0].initializeParams.sourceImage': '{wanted}'.",
                )
        error = self._insert_error(kind, subnet)
        made = self._make(body, zone, status="PROVISIONING", subnet=subnet)

        def finish() -> None:
            if self.instances.get((zone, name)) is not made:
                return
            if error:
                del self.instances[zone, name]
                operation.shown |= _failed(error)
            else:
                if made["status"] == "PROVISIONING":
                    made["status"] = "RUNNING"
                self.made[name] += 1
                self.on_made(name, made)

        operation = self.operate("insert", f"zones/{zone}/instances/{name}", self.rules.insert, finish, request)
        return dict(operation.shown)

    def _insert_error(self, kind: str, subnet: str) -> str:
        for what, code in ((subnet, NO_ADDRESS), (kind, STOCK_OUT_DETAILS)):
            if what in self.rules.capacity:
                if self.rules.capacity[what] <= 0:
                    return code
                self.rules.capacity[what] -= 1
        return self.rules.operation_errors.pop(0) if self.rules.operation_errors else ""

    def _make(self, body: Json, zone: str, *, status: str, subnet: str = "subnet-1") -> Json:
        name, number = body["name"], next(self._addresses)
        interfaces = [
            {
                **interface,
                "name": f"nic{index}",
                "networkIP": f"10.{index}.{number // 250}.{number % 250}",
                "fingerprint": f"f-{uuid.uuid4().hex[:8]}",
                "aliasIpRanges": list(interface.get("aliasIpRanges", ())),
                "subnetwork": f"{LINK}projects/{PROJECT}/regions/{REGION}/subnetworks/{subnet}",
            }
            for index, interface in enumerate(body["networkInterfaces"])
        ]
        made = {
            **body,
            "id": str(10**15 + number),
            "kind": "compute#instance",
            "status": status,
            "zone": f"{LINK}projects/{PROJECT}/zones/{zone}",
            "selfLink": f"{LINK}projects/{PROJECT}/zones/{zone}/instances/{name}",
            "networkInterfaces": interfaces,
            "creationTimestamp": _time(),
        }
        self.instances[zone, name] = made
        return made

    def _end(self, zone: str, name: str) -> None:
        if self.instances.pop((zone, name), None) is not None:
            for members in self.groups.values():
                members.discard(name)
            self.on_gone(name)

    async def _get(self, request: Request) -> Json:
        return _public(self._found(request))

    def _found(self, request: Request) -> Json:
        self.settle()
        self.stand_in.check("compute.instances.get")
        zone, name = self.zone_of(request), request.params["instance"]
        if (zone, name) not in self.instances:
            raise GoogleFault(
                404, "notFound", f"The resource 'projects/{PROJECT}/zones/{zone}/instances/{name}' was not found"
            )
        return self.instances[zone, name]

    async def _list(self, request: Request) -> Json:
        self.settle()
        zone = self.zone_of(request)
        found = [vm for (of, _), vm in sorted(self.instances.items()) if of == zone]
        return self.page(request, [_public(vm) for vm in found], "compute#instanceList")

    async def _aggregated(self, request: Request) -> Json:
        self.settle()
        scopes: Json = {}
        for (zone, _), vm in sorted(self.instances.items()):
            scopes.setdefault(f"zones/{zone}", {"instances": []})["instances"].append(_public(vm))
        scopes["zones/elsewhere"] = {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "There are no results"}}
        return {"kind": "compute#instanceAggregatedList", "items": scopes}

    async def _delete(self, request: Request) -> Json:
        self.settle()
        self.stand_in.check("compute.instances.delete")
        if known := self._known(request):
            return known
        found, zone, name = self._found(request), self.zone_of(request), request.params["instance"]
        if found.get("deletionProtection"):
            raise GoogleFault(
                400,
                "invalidResourceUsage",
                "Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion.'.",
            )
        target = f"zones/{zone}/instances/{name}"
        if found["status"] == "PROVISIONING" and self.rules.delete_needs_finished_insert:
            operation = self.operate("delete", target, 0.0, lambda: None, request)
            shown = dict(operation.shown)
            operation.shown |= _failed("RESOURCE_NOT_READY")
            return shown
        found |= {"status": "STOPPING", "_ending": True}
        operation = self.operate("delete", target, self.rules.delete, lambda: self._end(zone, name), request)
        return dict(operation.shown)

    async def _console(self, request: Request) -> Json:
        found = self._found(request)
        text = self.console.get(found["name"], "")
        start = int(request.params.get("start", "0"))
        return {"kind": "compute#serialPortOutput", "contents": text[start:], "start": "0", "next": str(len(text))}

    async def _update_interface(self, request: Request) -> Json:
        found, zone = self._found(request), self.zone_of(request)
        self.stand_in.check("compute.instances.updateNetworkInterface")
        interface = next(
            each for each in found["networkInterfaces"] if each["name"] == request.params["networkInterface"]
        )
        if request.body["fingerprint"] != interface["fingerprint"]:
            raise GoogleFault(412, "conditionNotMet", "Supplied fingerprint does not match current fingerprint")
        target = f"zones/{zone}/instances/{found['name']}"
        wanted = request.body.get("aliasIpRanges", [])
        taken = {
            each["ipCidrRange"]
            for vm in self.instances.values()
            if vm is not found
            for nic in vm["networkInterfaces"]
            for each in nic["aliasIpRanges"]
        }
        operation = self.operate("updateNetworkInterface", target, self.rules.update, lambda: None, request)
        if any(each["ipCidrRange"] in taken for each in wanted):
            operation.finish = lambda: operation.shown.update(_failed("IP_IN_USE_BY_ANOTHER_RESOURCE"))
        else:
            interface |= {"aliasIpRanges": wanted, "fingerprint": f"f-{uuid.uuid4().hex[:8]}"}
        return dict(operation.shown)

    # ---- operations

    def _known(self, request: Request) -> Json | None:
        """The operation of an earlier request with the same ID."""
        id = request.params.get("requestId", "")
        if id:
            assert uuid.UUID(id).int, "a request ID is a UUID, and not zero"
        return dict(self.operations[self._requests[id]].shown) if id in self._requests else None

    def operate(
        self, kind: str, target: str, seconds: float, finish: Callable[[], None], request: Request | None = None
    ) -> Operation:
        name = f"operation-{len(self.operations)}-{uuid.uuid4().hex[:6]}"
        zone = target.split("/")[1]
        shown = {
            "kind": "compute#operation",
            "name": name,
            "operationType": kind,
            "status": "PENDING" if len(self.operations) % 2 else "RUNNING",
            "progress": 0,
            "targetLink": f"{LINK}projects/{PROJECT}/{target}",
            "selfLink": f"{LINK}projects/{PROJECT}/zones/{zone}/operations/{name}",
            "insertTime": _time(),
        }
        if request is not None and (id := request.params.get("requestId")):
            shown["clientOperationId"] = id
            self._requests[id] = name
        made = self.operations[name] = Operation(shown, time.monotonic() + seconds, finish)
        return made

    async def _wait(self, request: Request) -> Json:
        self.stand_in.check("compute.zoneOperations.get")
        found = self.operations.get(request.params["operation"])
        if found is None:
            raise GoogleFault(404, "notFound", "The operation was not found")
        end = time.monotonic() + self.rules.wait_limit
        while True:
            self.settle()
            left = min(found.due, end) - time.monotonic()
            if found.shown["status"] == "DONE" or left <= 0:
                return dict(found.shown)
            await asyncio.sleep(left)

    async def _operations(self, request: Request) -> Json:
        self.settle()
        self.stand_in.check("compute.zoneOperations.list")
        return self.page(request, [dict(each.shown) for each in self.operations.values()], "compute#operationList")

    async def _zone(self, request: Request) -> Json:
        return {"kind": "compute#zone", "name": self.zone_of(request)}

    def zone_of(self, request: Request) -> str:
        if request.params["project"] != PROJECT or not re.fullmatch(rf"{REGION}-[a-d]", request.params["zone"]):
            raise GoogleFault(
                404,
                "notFound",
                f"The resource 'projects/{request.params['project']}/zones/{request.params['zone']}' was not found",
            )
        return request.params["zone"]

    def page(self, request: Request, entries: list[Json], kind: str) -> Json:
        wanted = request.params.get("filter", "")
        if wanted and not filters.is_valid(wanted):
            raise GoogleFault(400, "invalid", f"Invalid value for field 'filter': '{wanted}'.")
        entries = [each for each in entries if filters.matches(each, wanted)]
        start = int(request.params.get("pageToken", "0"))
        size = min(self.rules.page_size, int(request.params.get("maxResults", "500")))
        page: Json = {"kind": kind, "items": entries[start : start + size]}
        if len(entries) > start + size:
            page["nextPageToken"] = str(start + size)
        if not page["items"]:
            page |= {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "There are no results"}}
        if self.rules.warning:
            page["warning"] = {"code": self.rules.warning, "message": "partial"}
        return page


def _failed(code: str) -> Json:
    return {
        "httpErrorStatusCode": 409 if code == "RESOURCE_NOT_READY" else 503,
        "httpErrorMessage": "failed",
        "error": {"errors": [{"code": code, "message": f"The operation failed with {code}."}]},
    }


def _public(vm: Mapping[str, Any]) -> Json:
    return {name: value for name, value in vm.items() if not name.startswith("_")}


def _time() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000-00:00", time.gmtime())
