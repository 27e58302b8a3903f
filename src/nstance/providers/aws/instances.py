"""EC2 instances as VMs.

The traps: a create whose reply is lost is repeated with the same ClientToken, which EC2 answers with the first instance.
EC2's answers lag behind, so "not found" just after a create proves nothing. A terminated instance is listed for about an
hour.
"""

import base64
from collections.abc import Mapping, Sequence

from nstance.aws.client import EC2, AwsClient
from nstance.aws.encoding import Answer, entries
from nstance.clock import Clock
from nstance.model import ids
from nstance.model.ids import ClusterId, GroupName, InstanceId, ProviderId, ShardId, TenantId
from nstance.providers import errors, port
from nstance.providers.aws import launches, tags
from nstance.providers.aws.faults import RUN_INSTANCES, code_of, translated
from nstance.providers.aws.launch_budget import LaunchBudget
from nstance.providers.cloud_answers import check_owner, exhausted
from nstance.providers.port import CreateRequest, Scope, Status, Vm

PAGE_SIZE = 1000
VISIBLE_AFTER_SECONDS = 600.0  # after its creation an instance is shown; before, "not found" may be wrong

_STATUS = {
    "pending": Status.PENDING,
    "running": Status.RUNNING,
    "shutting-down": Status.DELETING,
    "terminated": Status.DELETED,
    "stopping": Status.STOPPING,
    "stopped": Status.STOPPED,
}
_ENDED = (Status.DELETING, Status.DELETED)
_END_REASONS = {
    "Server.SpotInstanceTermination": "spot interruption",
    "Server.SpotInstanceShutdown": "spot interruption",
    "Client.UserInitiatedShutdown": "shut down by a user",
    "Client.UserInitiatedHibernate": "hibernated by a user",
    "Client.InstanceInitiatedShutdown": "shut down from inside",
    "Client.InternalError": "failed to start",
    "Server.InternalError": "failed to start",
    "Server.InsufficientInstanceCapacity": "no capacity",
    "Client.VolumeLimitExceeded": "volume limit exceeded",
}


class Ec2Instances:
    """`providers.port.Instances` and `Console`."""

    def __init__(self, scope: Scope, client: AwsClient, clock: Clock, budget: LaunchBudget) -> None:
        self._scope = scope
        self._client = client
        self._clock = clock
        self._budget = budget

    @property
    def traits(self) -> port.Traits:
        return port.Traits(drains_targets=True)

    async def create(self, request: CreateRequest) -> Vm:
        params = launches.parameters(self._scope, request)
        if request.may_exist and (found := await self._find(request.id)) is not None:
            return self._existing(found)
        await self._budget.spend()
        try:
            with translated(RUN_INSTANCES, changes=True):
                answer = await self._client.query(EC2, "RunInstances", params)
        except errors.NotFoundError as problem:  # a subnet, an image, a security group: never an instance
            raise errors.PermanentError(str(problem)) from problem
        except errors.NoCapacityError as problem:
            problem.subject = exhausted(problem.scope, request)
            raise
        except errors.PermanentError as problem:
            return await self._refused(problem, request.id)
        created = entries(answer, "instancesSet")
        if not created:
            raise errors.UnknownOutcomeError("RunInstances answered without an instance")
        return self._existing(self._vm(created[0], request.id))

    async def _refused(self, problem: errors.PermanentError, id: InstanceId) -> Vm:
        match code_of(problem):
            case "IdempotentInstanceTerminated":
                raise errors.deleted(id) from problem
            case "IdempotentParameterMismatch":  # it was requested before, with other parameters
                found = await self._find(id)
                if found is None:
                    raise errors.UnknownOutcomeError(
                        f"{id} was requested before, and EC2 does not show it yet"
                    ) from problem
                return self._existing(found)
            case _:
                raise problem

    def _existing(self, vm: Vm) -> Vm:
        if vm.status in _ENDED:
            raise errors.deleted(vm.id)
        return vm

    async def delete(self, id: InstanceId, provider_id: ProviderId | None) -> Status:
        if provider_id is None:
            found = await self._find(id)
            if found is None:
                return Status.DELETING  # an answer that lags proves nothing: the shard looks again
            if found.status is Status.DELETED:
                return Status.DELETED
            provider_id = found.provider_id
        try:
            with translated("ec2:TerminateInstances", changes=True):
                answer = await self._client.query(EC2, "TerminateInstances", {"InstanceId": [provider_id]})
        except errors.NotFoundError:
            return self._unseen(id)
        except errors.PermanentError as problem:
            if problem.permission:
                return await self._denied(problem, id, provider_id)
            if code_of(problem) != "OperationNotPermitted":
                raise
            raise errors.PermanentError(
                f"{provider_id} has termination protection; lift it with: aws ec2 modify-instance-attribute "
                f"--instance-id {provider_id} --no-disable-api-termination"
            ) from problem
        state = next((_state(each, "currentState") for each in entries(answer, "instancesSet")), "")
        return Status.DELETED if state == "terminated" else Status.DELETING

    async def _denied(self, problem: errors.PermanentError, id: InstanceId, provider_id: ProviderId) -> Status:
        """A policy that is limited to tagged instances denies the call for one that no longer exists: it has no tags."""
        try:
            described = await self._describe({"InstanceId": [provider_id]})
        except errors.NotFoundError:
            return self._unseen(id)
        status = self._vm(described[0], id).status if described else Status.UNKNOWN
        if status not in _ENDED:
            raise problem
        return status

    def _unseen(self, id: InstanceId) -> Status:
        """It is gone, unless it is so young by the time in its ID that "not found" may be wrong."""
        created = (ids.uuid_of(id) >> 80) / 1000
        return Status.DELETING if self._clock.wall() < created + VISIBLE_AFTER_SECONDS else Status.DELETED

    async def get(self, id: InstanceId, provider_id: ProviderId | None) -> Vm:
        if provider_id is None:
            found = await self._find(id)
        else:
            described = await self._describe({"InstanceId": [provider_id]})
            found = self._owned(self._vm(described[0], id), id) if described else None
        if found is None:
            raise errors.NotFoundError(f"EC2 shows no instance of {id}")
        return found

    async def list(self) -> Sequence[Vm]:
        described = await self._describe({"Filter": tags.filters(tags.owned(self._scope))})
        return [self._vm(each, InstanceId(id)) for each in described if (id := _tags(each).get(tags.ID))]

    async def console_output(self, id: InstanceId, provider_id: ProviderId | None) -> str:
        if provider_id is None:
            provider_id = (await self.get(id, None)).provider_id
        try:
            answer = await self._console(provider_id, Latest=True)
        except errors.PermanentError as problem:  # of an instance type without the Nitro system
            if code_of(problem) != "UnsupportedOperation":
                raise
            answer = await self._console(provider_id)
        try:
            text = base64.b64decode(str(answer.get("output") or ""))
        except ValueError as problem:
            raise errors.UnavailableError(f"EC2 sent console output that cannot be read: {problem}") from problem
        return text[-port.MAX_CONSOLE_BYTES :].decode("utf-8", "replace")

    async def _console(self, provider_id: ProviderId, **more: object) -> Answer:
        with translated("ec2:GetConsoleOutput", changes=False):
            return await self._client.query(EC2, "GetConsoleOutput", {"InstanceId": provider_id, **more})

    async def close(self) -> None:
        await self._client.close()

    async def _find(self, id: InstanceId) -> Vm | None:
        """By its tag. Of several the one that lives. Raises PermanentError if it belongs to another shard."""
        described = await self._describe({"Filter": tags.filters({tags.ID: id})})
        vms = [self._owned(self._vm(each, id), id) for each in described]
        return min(vms, key=lambda vm: vm.status in _ENDED, default=None)

    def _owned(self, vm: Vm, id: InstanceId) -> Vm:
        if vm.id != id:
            raise errors.PermanentError(f"{vm.provider_id} is the VM of {vm.id}, not of {id}")
        check_owner(self._scope, id, vm.cluster, vm.shard)
        return vm

    async def _describe(self, params: Mapping[str, object]) -> Sequence[Answer]:
        """Every page, or an error."""
        found: list[Answer] = []
        page: dict[str, object] = {} if "InstanceId" in params else {"MaxResults": PAGE_SIZE}
        seen: set[str] = set()
        while True:
            with translated("ec2:DescribeInstances", changes=False):
                answer = await self._client.query(EC2, "DescribeInstances", {**params, **page})
            found += [each for group in entries(answer, "reservationSet") for each in entries(group, "instancesSet")]
            token = str(answer.get("nextToken") or "")
            if not token:
                return found
            if token in seen:  # an empty page is no end: only a missing token is
                raise errors.UnavailableError("DescribeInstances repeats a page: the listing is not complete")
            seen.add(token)
            page["NextToken"] = token

    def _vm(self, described: Answer, id: InstanceId) -> Vm:
        """`id`: for an instance that has lost its tags."""
        found = _tags(described)
        return Vm(
            id=InstanceId(found.get(tags.ID) or id),
            provider_id=ProviderId(str(described.get("instanceId"))),
            status=_STATUS.get(_state(described, "instanceState"), Status.UNKNOWN),
            ip4=str(described.get("privateIpAddress") or ""),
            ip6=str(described.get("ipv6Address") or ""),
            hostname=str(described.get("privateDnsName") or ""),
            cluster=ClusterId(found[tags.CLUSTER]) if found.get(tags.CLUSTER) else None,
            shard=ShardId(found[tags.SHARD]) if found.get(tags.SHARD) else None,
            tenant=TenantId(found[tags.TENANT]) if found.get(tags.TENANT) else None,
            group=GroupName(found[tags.GROUP]) if found.get(tags.GROUP) else None,
            end_reason=_end_reason(described),
        )


def _tags(described: Answer) -> dict[str, str]:
    return {str(tag.get("key")): str(tag.get("value") or "") for tag in entries(described, "tagSet")}


def _state(described: Answer, name: str) -> str:
    state = described.get(name)
    return str(state.get("name") or "") if isinstance(state, dict) else ""


def _end_reason(described: Answer) -> str:
    """What ended it, in our words and in EC2's. EC2 also gives a reason for a pending instance, which is none."""
    reason = described.get("stateReason")
    if not isinstance(reason, dict) or _state(described, "instanceState") in ("pending", "running"):
        return ""
    code, message = str(reason.get("code") or ""), str(reason.get("message") or "")
    ours = _END_REASONS.get(code)
    return f"{ours}: {message}" if ours else message or code
