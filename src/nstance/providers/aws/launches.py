"""The request of RunInstances for one instance.

The ClientToken makes a repeated request harmless. It depends on the offer as well as on the instance, because EC2 refuses
the token of another request, and a fallback to another offer is one.
"""

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from nstance.aws import arguments
from nstance.providers import errors
from nstance.providers.aws import tags
from nstance.providers.port import CreateRequest, Scope

MAX_USERDATA_BYTES = 16 * 1024
SPOT = "spot"

_DEFAULTS: Mapping[str, object] = {"MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}}
_SPOT_OPTIONS: Mapping[str, object] = {
    "InstanceMarketOptions": {
        "MarketType": SPOT,
        "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
    }
}


def parameters(scope: Scope, request: CreateRequest) -> dict[str, object]:
    """Raises PermanentError for userdata that EC2 does not take, and for a spot request that would outlive its instance."""
    _check_userdata(request.userdata)
    for fault in arguments.find_persistent_request(request.args):  # again: now it is rendered
        path = ".".join(("args", *map(str, fault.path)))
        raise errors.PermanentError(f"{path}: {fault.message}", parameter=path)
    defaults = {**_DEFAULTS, **(_SPOT_OPTIONS if request.market == SPOT else {})}
    args = arguments.merge(request.args, defaults)
    if request.market and request.market != SPOT:
        args.pop("InstanceMarketOptions", None)  # the offer is on-demand, whatever the template prefers
    args["TagSpecifications"] = tags.specifications(scope, request)
    if request.instance_type:
        args["InstanceType"] = request.instance_type
    params = arguments.parameters(args)
    if request.subnet:
        _place(params, request.subnet)
    if request.userdata:
        params["UserData"] = base64.b64encode(request.userdata).decode()
    return {**params, "MinCount": 1, "MaxCount": 1, "ClientToken": client_token(request)}


def client_token(request: CreateRequest) -> str:
    """One per instance and offer: at most 64 characters."""
    offer = "\n".join((request.market, request.instance_type, request.subnet))
    return f"{request.id}-{hashlib.sha256(offer.encode()).hexdigest()[:16]}"


def _check_userdata(userdata: bytes) -> None:
    if len(userdata) > MAX_USERDATA_BYTES:
        raise errors.PermanentError(
            f"userdata: expected at most {MAX_USERDATA_BYTES} bytes, which is what EC2 takes, found {len(userdata)}; "
            'set its encoding to "gzip", which cloud-init unpacks, or let it fetch its larger parts',
            parameter="userdata",
        )


def _place(params: dict[str, object], subnet: str) -> None:
    """Where network interfaces are given, the subnet belongs to the first of them."""
    interfaces: Any = params.get("NetworkInterface")
    if not interfaces:
        params["SubnetId"] = subnet
    elif "SubnetId" not in interfaces[0] and "NetworkInterfaceId" not in interfaces[0]:
        params["NetworkInterface"] = [{**interfaces[0], "SubnetId": subnet}, *interfaces[1:]]
