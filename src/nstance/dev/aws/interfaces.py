"""Network interfaces that cannot be stolen: one that is attached, or still detaching, is in use."""

from collections.abc import Mapping

from nstance.clock import Clock
from nstance.dev.aws import xml
from nstance.dev.aws.books import Books, Params
from nstance.dev.aws.moto import Moto, Refusal
from nstance.dev.aws.rules import Rules

_IP6_FILTER = "ipv6-addresses.ipv6-address"


class Interfaces:
    def __init__(self, moto: Moto, clock: Clock, rules: Rules, books: Books) -> None:
        self._moto, self._clock, self.rules, self.books = moto, clock, rules, books

    async def attach(self, params: Params, body: bytes, headers: Mapping[str, str]) -> bytes:
        interface = params.get("NetworkInterfaceId", "")
        found = _interfaces(await self._moto.ec2("DescribeNetworkInterfaces", {"NetworkInterfaceId.1": interface}))
        if self._is_detaching(interface) or any(xml.text(each, "attachment", "attachmentId") for each in found):
            raise Refusal("InvalidNetworkInterface.InUse", f"Interface {interface} is in use.")
        return await self._moto.call(body, headers)

    async def detach(self, params: Params, body: bytes, headers: Mapping[str, str]) -> bytes:
        attachment = params.get("AttachmentId", "")
        everything = _interfaces(await self._moto.ec2("DescribeNetworkInterfaces"))
        found = [
            xml.text(each, "networkInterfaceId")
            for each in everything
            if xml.text(each, "attachment", "attachmentId") == attachment
        ]
        if not found:
            raise Refusal("InvalidAttachmentID.NotFound", f"The attachment '{attachment}' does not exist")
        answer = await self._moto.call(body, headers)
        self.books.detaching[found[0]] = self._clock.monotonic() + self.rules.detach_seconds
        return answer

    async def assign(self, params: Params, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Secondary addresses: taken from another interface only if the caller says so."""
        own = params.get("NetworkInterfaceId", "")
        wanted = {value for name, value in params.items() if name.startswith("PrivateIpAddress.")}
        for other in _interfaces(await self._moto.ec2("DescribeNetworkInterfaces")):
            id = xml.text(other, "networkInterfaceId")
            held = {xml.text(each, "privateIpAddress") for each in xml.entries(other, "privateIpAddressesSet")}
            for ip in wanted & held if id != own else ():
                if params.get("AllowReassignment") != "true":
                    raise Refusal("PrivateIpAddressInUse", f"{ip} is assigned to {id}")
                taken = {"NetworkInterfaceId": id, "PrivateIpAddress.1": ip}
                await self._moto.ec2("UnassignPrivateIpAddresses", taken)
        return await self._moto.call(body, headers)

    async def describe(self, params: Params, body: bytes, headers: Mapping[str, str]) -> bytes:
        if params.get("Filter.1.Name") == _IP6_FILTER:  # moto does not have it
            root = xml.parse(await self._moto.ec2("DescribeNetworkInterfaces"))
            ip6 = params.get("Filter.1.Value.1", "")
            xml.keep(root, "networkInterfaceSet", lambda each: ip6 in _ip6(each))
        else:
            root = xml.parse(await self._moto.call(body, headers))
        for interface in xml.all_entries(root, "networkInterfaceSet"):
            if self._is_detaching(xml.text(interface, "networkInterfaceId")) and xml.children(interface, "status"):
                xml.set_text(interface, "in-use", "status")
        return xml.write(root)

    def _is_detaching(self, interface: str) -> bool:
        return self._clock.monotonic() < self.books.detaching.get(interface, 0.0)


def _interfaces(body: bytes) -> list[xml.Element]:
    return [each for each in xml.all_entries(xml.parse(body), "networkInterfaceSet") if len(each)]


def _ip6(interface: xml.Element) -> list[str]:
    return [xml.text(each, "ipv6Address") for each in xml.entries(interface, "ipv6AddressesSet")]
