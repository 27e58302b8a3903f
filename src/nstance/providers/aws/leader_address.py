"""The shard's fixed address: a secondary IP of this server's interface, or an interface that moves.

A secondary IP moves in one call. An interface has to be detached from its old holder first, which may be gone, hang or be
detaching already: so it is described before each step, and "in use" means to look again.
"""

from collections.abc import Mapping

from nstance.aws.client import EC2, AwsClient
from nstance.aws.encoding import Answer, entries
from nstance.clock import Clock
from nstance.providers import errors
from nstance.providers.aws.faults import code_of, translated
from nstance.providers.port import FixedAddress

LOOK_SECONDS = 0.5
MAX_LOOKS = 40  # within the deadline of a call, so that the error says what is wrong
_LOOK_AGAIN = ("InvalidNetworkInterface.InUse", "IncorrectState", "InvalidParameterValue.AttachmentInUse")


class MovingAddress:
    """`providers.port.LeaderAddress`."""

    def __init__(self, client: AwsClient, clock: Clock, address: FixedAddress) -> None:
        self._client = client
        self._clock = clock
        self._address = address
        self._own_instance = self._own_primary = ""  # they never change

    async def assign_leader_address(self) -> None:
        if self._address.interface_id:
            await self._attach(self._address.interface_id)
            return
        own = await self._own_interface()
        if self._address.ip4:
            await self._take_ip4(own, self._address.ip4)
        if self._address.ip6:
            await self._take_ip6(own, self._address.ip6)

    async def release_leader_address(self) -> None:
        if self._address.interface_id:
            described = await self._describe_interface(self._address.interface_id)
            attachment = _attachment(described)
            if attachment.get("instanceId") == await self._instance_id():
                await self._call("DetachNetworkInterface", {"AttachmentId": attachment["attachmentId"], "Force": True})
            return
        own = await self._own_interface()
        described = await self._describe_interface(own)
        if self._address.ip4 and self._address.ip4 in _ip4(described):
            params = {"NetworkInterfaceId": own, "PrivateIpAddress": [self._address.ip4]}
            await self._call("UnassignPrivateIpAddresses", params)
        if self._address.ip6 and self._address.ip6 in _ip6(described):
            await self._call("UnassignIpv6Addresses", {"NetworkInterfaceId": own, "Ipv6Addresses": [self._address.ip6]})

    async def _take_ip4(self, own: str, ip4: str) -> None:
        params = {"NetworkInterfaceId": own, "PrivateIpAddress": [ip4], "AllowReassignment": True}
        try:
            await self._call("AssignPrivateIpAddresses", params)
        except errors.PermanentError:
            if ip4 not in _ip4(await self._describe_interface(own)):
                raise

    async def _take_ip6(self, own: str, ip6: str) -> None:
        """IPv6 addresses cannot be reassigned in one call: the old holder loses it first."""
        filters = [{"Name": "ipv6-addresses.ipv6-address", "Value": [ip6]}]
        answer = await self._call("DescribeNetworkInterfaces", {"Filter": filters}, changes=False)
        for holder in entries(answer, "networkInterfaceSet"):
            if holder.get("networkInterfaceId") == own:
                return
            params = {"NetworkInterfaceId": holder["networkInterfaceId"], "Ipv6Addresses": [ip6]}
            await self._call("UnassignIpv6Addresses", params)
        await self._call("AssignIpv6Addresses", {"NetworkInterfaceId": own, "Ipv6Addresses": [ip6]})

    async def _attach(self, interface: str) -> None:
        me = await self._instance_id()
        for _ in range(MAX_LOOKS):
            described = await self._describe_interface(interface)
            attachment = _attachment(described)
            if attachment.get("instanceId") == me and attachment.get("status") in ("attached", "attaching"):
                return
            try:
                if described.get("status") == "available":
                    params = {"NetworkInterfaceId": interface, "InstanceId": me, "DeviceIndex": 1}
                    await self._call("AttachNetworkInterface", params)
                    return
                if attachment.get("attachmentId") and attachment.get("status") != "detaching":
                    params = {"AttachmentId": attachment["attachmentId"], "Force": True}
                    await self._call("DetachNetworkInterface", params)
            except errors.NotFoundError:
                pass  # the attachment that was seen is gone: look again
            except errors.PermanentError as problem:
                if code_of(problem) not in _LOOK_AGAIN:
                    raise
            await self._clock.sleep(LOOK_SECONDS)
        raise errors.UnavailableError(f"{interface} did not become free within {MAX_LOOKS * LOOK_SECONDS:.0f} s")

    async def _describe_interface(self, interface: str) -> Answer:
        answer = await self._call("DescribeNetworkInterfaces", {"NetworkInterfaceId": [interface]}, changes=False)
        found = entries(answer, "networkInterfaceSet")
        if not found:
            raise errors.PermanentError(f"there is no network interface {interface}", parameter="interface_id")
        return dict(found[0])

    async def _call(self, action: str, params: Mapping[str, object], *, changes: bool = True) -> Answer:
        with translated(f"ec2:{action}", changes=changes):
            return await self._client.query(EC2, action, params)

    async def _instance_id(self) -> str:
        if not self._own_instance:
            with translated("the instance metadata service", changes=False):
                self._own_instance = await self._client.metadata.instance_id()
        return self._own_instance

    async def _own_interface(self) -> str:
        if not self._own_primary:
            with translated("the instance metadata service", changes=False):
                self._own_primary = await self._client.metadata.interface_id()
        return self._own_primary


def _attachment(described: Answer) -> Answer:
    found = described.get("attachment")
    return found if isinstance(found, dict) else {}


def _ip4(described: Answer) -> set[str]:
    return {str(each.get("privateIpAddress")) for each in entries(described, "privateIpAddressesSet")}


def _ip6(described: Answer) -> set[str]:
    return {str(each.get("ipv6Address")) for each in entries(described, "ipv6AddressesSet")}
