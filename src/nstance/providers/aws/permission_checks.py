"""Which calls AWS denies, as far as that can be known without changing anything.

EC2's DryRun answers `DryRunOperation` where the call would have been carried out. The trap: a policy that is limited to
tagged resources denies calls on what does not exist. So a denial counts only if it is repeated for a resource of the shard,
and only a service that is known to honor DryRun is asked about one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nstance.aws.client import EC2, AwsClient
from nstance.aws.encoding import Answer, Params, entries
from nstance.aws.errors import AwsError
from nstance.clouds.errors import NoAnswerError, NotSentError
from nstance.providers.aws import tags
from nstance.providers.port import Fault, FixedAddress, Scope

INFRA = ("shard", "infra")
DRY_RUN_DONE = "DryRunOperation"
_STATES = ["pending", "running", "stopping", "stopped"]


async def dry_run(client: AwsClient, action: str, params: Params) -> AwsError | str:
    """AWS's answer, or why there is none. Empty: the service ignored DryRun and did it."""
    try:
        await client.query(EC2, action, {**params, "DryRun": True})
    except AwsError as problem:
        return problem
    except (NotSentError, NoAnswerError) as problem:
        return str(problem)
    return ""


@dataclass(frozen=True, slots=True)
class _Resources:
    """What calls are about. Empty: there is none."""

    instance: str
    interface: str
    attachment: str

    def calls(self, address: FixedAddress | None) -> Mapping[str, Params]:
        calls: dict[str, Params] = {}
        if self.instance:
            calls["TerminateInstances"] = {"InstanceId": [self.instance]}
            calls["GetConsoleOutput"] = {"InstanceId": self.instance}
        if address is None:
            return calls
        to = {"NetworkInterfaceId": self.interface}
        if self.interface and not address.interface_id:
            calls["AssignPrivateIpAddresses"] = {**to, "SecondaryPrivateIpAddressCount": 1}
        if self.interface and self.instance and address.interface_id:
            calls["AttachNetworkInterface"] = {**to, "InstanceId": self.instance, "DeviceIndex": 1}
        if self.attachment and address.interface_id:
            calls["DetachNetworkInterface"] = {"AttachmentId": self.attachment}
        return calls


_NOTHING = _Resources("i-00000000000000000", "eni-00000000000000000", "eni-attach-00000000000000000")


class PermissionChecks:
    def __init__(self, scope: Scope, client: AwsClient, address: FixedAddress | None) -> None:
        self._scope = scope
        self._client = client
        self._address = address

    async def run(self, described: AwsError | str) -> list[Fault]:
        """`described`: the answer to a dry run of DescribeInstances."""
        answers = {"DescribeInstances": described}
        for action, params in _NOTHING.calls(self._address).items():
            answers[action] = await dry_run(self._client, action, params)
        if self._address is not None and self._address.interface_id:
            answers["DescribeNetworkInterfaces"] = await dry_run(self._client, "DescribeNetworkInterfaces", {})
        unsure = [action for action in _NOTHING.calls(self._address) if _is_denied(answers[action])]
        honors_dry_run = isinstance(described, AwsError) and described.code == DRY_RUN_DONE
        existing = await self._existing() if unsure and honors_dry_run else {}
        for action in unsure:
            answers[action] = await dry_run(self._client, action, existing[action]) if action in existing else ""
        return [fault for action, answer in answers.items() for fault in _faults(action, answer)]

    async def _existing(self) -> Mapping[str, Params]:
        filters = [*tags.filters(tags.owned(self._scope)), {"Name": "instance-state-name", "Value": _STATES}]
        reservations = await self._find("DescribeInstances", {"Filter": filters}, "reservationSet")
        instances = [each for group in reservations for each in entries(group, "instancesSet")]
        interface, attachment = "", ""
        if self._address is not None:
            interface = self._address.interface_id or await self._own_interface()
        if interface:
            found = await self._find(
                "DescribeNetworkInterfaces", {"NetworkInterfaceId": [interface]}, "networkInterfaceSet"
            )
            attached = [each["attachment"] for each in found if isinstance(each.get("attachment"), dict)]
            attachment = str(attached[0].get("attachmentId") or "") if attached else ""
        instance = str(instances[0].get("instanceId") or "") if instances else ""
        return _Resources(instance, interface, attachment).calls(self._address)

    async def _find(self, action: str, params: Params, name: str) -> Sequence[Answer]:
        try:
            return entries(await self._client.query(EC2, action, params), name)
        except (AwsError, NotSentError, NoAnswerError):
            return []  # what is not known is not asked about

    async def _own_interface(self) -> str:
        try:
            return await self._client.metadata.interface_id()
        except NotSentError:  # this is no EC2 instance
            return ""


def _is_denied(answer: AwsError | str) -> bool:
    return isinstance(answer, AwsError) and answer.is_denied


def _faults(action: str, answer: AwsError | str) -> list[Fault]:
    """Another refusal is none: only the resource does not exist."""
    if isinstance(answer, str):
        return [Fault(INFRA, f"failed to check the permission ec2:{action}: {answer}")] if answer else []
    if not answer.is_denied:
        return []
    return [Fault(INFRA, f"AWS denies ec2:{action}: allow it in the server's role: {answer}")]
