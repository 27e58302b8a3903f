"""The metadata service of each instance, IMDSv2 only: below `/metadata/<instance>` instead of 169.254.169.254.

The role's credentials never end well: each request gets new ones with an hour to live, as on EC2 near a rotation.
"""

import base64
import json
import time

from aiohttp import web

from nstance.clock import Clock
from nstance.dev.aws import xml
from nstance.dev.aws.books import Books
from nstance.dev.aws.instances import described
from nstance.dev.aws.moto import Moto, Refusal

PREFIX = "/metadata/"
ROLE = "nstance"
_TOKEN = "stand-in-token"
CREDENTIALS_SECONDS = 3600.0


class MetadataService:
    def __init__(self, moto: Moto, clock: Clock, books: Books) -> None:
        self._moto, self._clock, self._books = moto, clock, books
        self.rebalance: dict[str, float] = {}  # wall time of the notice, by instance
        self.spot_action: dict[str, float] = {}  # wall time at which an instance will end

    async def serve(self, request: web.Request) -> web.Response:
        instance, _, path = request.path.removeprefix(PREFIX).partition("/")
        if path == "latest/api/token":
            is_asked = request.method == "PUT" and "X-aws-ec2-metadata-token-ttl-seconds" in request.headers
            return web.Response(text=_TOKEN) if is_asked else web.Response(status=400)
        if request.headers.get("X-aws-ec2-metadata-token") != _TOKEN:
            return web.Response(status=401)
        value = await self._value(instance, path)
        return web.Response(status=404) if value is None else web.Response(body=value)

    async def _value(self, instance: str, path: str) -> bytes | None:
        try:
            found = described(await self._moto.describe_instances({"InstanceId.1": instance}))
        except Refusal:
            return None
        if path == "latest/user-data":
            return base64.b64decode(self._books.userdata.get(instance, "")) or None
        if not found or not path.startswith("latest/meta-data/"):
            return None
        text = self._metadata(found[0], path.removeprefix("latest/meta-data/").rstrip("/"))
        return None if text is None else text.encode()

    def _metadata(self, instance: xml.Element, name: str) -> str | None:
        id = xml.text(instance, "instanceId")
        interface = next(iter(xml.entries(instance, "networkInterfaceSet")), None)
        mac = xml.text(interface, "macAddress") if interface is not None else ""
        zone = xml.text(instance, "placement", "availabilityZone")
        fields = {
            "instance-id": id,
            "ami-id": xml.text(instance, "imageId"),
            "instance-life-cycle": xml.text(instance, "instanceLifecycle") or "on-demand",
            "instance-type": xml.text(instance, "instanceType"),
            "local-ipv4": xml.text(instance, "privateIpAddress"),
            "local-hostname": xml.text(instance, "privateDnsName"),
            "placement/availability-zone": zone,
            "placement/region": zone.rstrip("abcdef"),
            "mac": mac,
            "network/interfaces/macs": f"{mac}/",
            f"network/interfaces/macs/{mac}/interface-id": (
                xml.text(interface, "networkInterfaceId") if interface is not None else ""
            ),
            "iam/security-credentials": ROLE,
            f"iam/security-credentials/{ROLE}": self._credentials(),
        }
        if (at := self.spot_action.get(id)) is not None:
            fields["spot/instance-action"] = json.dumps({"action": "terminate", "time": _stamp(at)})
        if (at := self.rebalance.get(id)) is not None:
            fields["events/recommendations/rebalance"] = json.dumps({"noticeTime": _stamp(at)})
        return fields.get(name)

    def _credentials(self) -> str:
        ends = self._clock.wall() + CREDENTIALS_SECONDS
        keys = {"AccessKeyId": "ASIASTANDIN", "SecretAccessKey": "stand-in", "Token": f"token-{ends:.0f}"}
        return json.dumps({"Code": "Success", "Type": "AWS-HMAC", "Expiration": _stamp(ends), **keys})


def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
