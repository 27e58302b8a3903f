"""The request of an insert for one instance.

The `requestId` makes a repeated request harmless: Google answers it with the first operation, also with one that failed. So
it depends on the offer and on the number of the attempt as well as on the instance.
"""

import base64
import uuid
from collections.abc import Mapping
from typing import Any

from nstance.gcp import arguments
from nstance.providers import errors
from nstance.providers.gcp import labels
from nstance.providers.port import CreateRequest, Scope

MAX_USERDATA_BYTES = 256 * 1024
SPOT = "spot"
_NAMESPACE = uuid.UUID("6f0d6a1e-54f7-5a58-9a0e-5a2f5c1f7a25")
_SPOT_OPTIONS: Mapping[str, object] = {
    "provisioningModel": "SPOT",
    "instanceTerminationAction": "DELETE",
    "onHostMaintenance": "TERMINATE",
    "automaticRestart": False,
}


def request_id(*parts: object) -> str:
    """One for each of these: a UUID, as Google demands."""
    return str(uuid.uuid5(_NAMESPACE, "\n".join(map(str, parts))))


def body(scope: Scope, request: CreateRequest, *, project: str, zone: str) -> dict[str, Any]:
    """Raises PermanentError for userdata that Google does not take."""
    args = arguments.resource(request.args)
    ours = labels.of_request(scope, request)
    made = {name: value for name, value in args.items() if name not in arguments.SHORT}
    made["name"] = request.id
    made["labels"] = {**(args.get("labels") or {}), **ours}
    if request.instance_type:
        made["machineType"] = f"zones/{zone}/machineTypes/{request.instance_type}"
    made["disks"] = _disks(args, ours, zone)
    made["networkInterfaces"] = _interfaces(args, request.subnet, project, zone.rpartition("-")[0])
    if scheduling := _scheduling(args, request.market):
        made["scheduling"] = scheduling
    if account := args.get("serviceAccount"):
        scopes = args.get("scopes") or ["https://www.googleapis.com/auth/cloud-platform"]
        made["serviceAccounts"] = [{"email": account, "scopes": scopes}]
    if tags := args.get("networkTags"):
        made["tags"] = {"items": tags}
    metadata = {**(args.get("metadata") or {}), **_userdata(request.userdata)}
    if metadata:
        made["metadata"] = {"items": [{"key": key, "value": value} for key, value in metadata.items()]}
    return made


def _disks(args: Mapping[str, Any], ours: Mapping[str, str], zone: str) -> list[dict[str, Any]]:
    """The short arguments describe the boot disk. Disks that are made with a VM carry its labels and end with it."""
    disks = [dict(disk) for disk in args.get("disks") or ()]
    boot = {
        "sourceImage": args.get("sourceImage"),
        "diskSizeGb": args.get("diskSizeGb"),
        "diskType": f"zones/{zone}/diskTypes/{args['diskType']}" if args.get("diskType") else None,
    }
    given = {name: value for name, value in boot.items() if value is not None}
    if given and not any(disk.get("boot") for disk in disks):
        disks.insert(0, {"boot": True})
    for disk in disks:
        if disk.get("source"):
            continue  # it exists already, and outlives the VM unless the arguments say otherwise
        disk.setdefault("autoDelete", True)
        made = {**(disk.get("initializeParams") or {}), **(given if disk.get("boot") else {})}
        disk["initializeParams"] = {**made, "labels": {**(made.get("labels") or {}), **ours}}
    return disks


def _interfaces(args: Mapping[str, Any], subnet: str, project: str, region: str) -> list[dict[str, Any]]:
    """The subnet belongs to the first interface, unless the arguments name another one."""
    interfaces: list[dict[str, Any]] = [dict(each) for each in args.get("networkInterfaces") or [{}]]
    if subnet and "subnetwork" not in interfaces[0]:
        interfaces[0]["subnetwork"] = subnet_path(subnet, project, region)
    return interfaces


def subnet_path(subnet: str, project: str, region: str) -> str:
    """Of a name; a path names its own project, as a shared network's does."""
    return subnet if "/" in subnet else f"projects/{project}/regions/{region}/subnetworks/{subnet}"


def _scheduling(args: Mapping[str, Any], market: str) -> dict[str, Any]:
    found = dict(args.get("scheduling") or {})
    for name in ("preemptible", "provisioningModel"):
        if args.get(name) is not None:
            found[name] = args[name]
    if market == SPOT:
        found.pop("preemptible", None)
        return {**_SPOT_OPTIONS, **found, "provisioningModel": "SPOT"}
    if market:  # the offer is on-demand, whatever the template prefers
        found = {
            name: value for name, value in found.items() if name not in ("preemptible", "instanceTerminationAction")
        }
        return {**found, "provisioningModel": "STANDARD"} if "provisioningModel" in found else found
    if found.get("provisioningModel") == "SPOT":
        return {**_SPOT_OPTIONS, **found}
    return found


def _userdata(userdata: bytes) -> dict[str, str]:
    if not userdata:
        return {}
    if len(userdata) > MAX_USERDATA_BYTES * 3 // 4:
        raise errors.PermanentError(
            f"userdata: expected at most {MAX_USERDATA_BYTES * 3 // 4} bytes, which is what Google takes, found "
            f'{len(userdata)}; set its encoding to "gzip", or let it fetch its larger parts',
            parameter="userdata",
        )
    try:
        return {"user-data": userdata.decode()}
    except UnicodeDecodeError:  # cloud-init decodes it
        return {"user-data": base64.b64encode(userdata).decode(), "user-data-encoding": "base64"}
