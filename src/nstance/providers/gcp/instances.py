"""Compute Engine instances as VMs. The name of a VM is its instance ID.

The traps: Google answers a repeated `requestId` with the first operation, even with one that failed; an operation may fail
long after its call was a success; a poll that fails says nothing about the VM; and a name is free again once its VM is
deleted, so before an ID gets another attempt, its operations are searched for a delete.
"""

import contextlib
from collections.abc import Iterator, Sequence

from nstance.gcp.client import Answer
from nstance.model import ids
from nstance.model.ids import ClusterId, GroupName, InstanceId, ProviderId, ShardId, TenantId
from nstance.providers import errors, port
from nstance.providers.cloud_answers import check_owner, exhausted
from nstance.providers.gcp import labels, launches
from nstance.providers.gcp.compute import PAUSE_SECONDS, Compute
from nstance.providers.gcp.faults import CREATE, EXISTS, find_parameter, of_operation, reason_of, status_of
from nstance.providers.port import CreateRequest, Scope, Status, Vm

CREATE_SECONDS = 120.0  # then the outcome is unknown; callers have shorter deadlines
MAX_ATTEMPTS = 200  # of one instance with one offer, while Google remembers failed ones
MAX_REMEMBERED = 10_000
DELETE = "compute.instances.delete"
DELETE_WINDOW_SECONDS = 60.0  # deletes within it are one request, until it fails
MAX_DELETES = 30
VISIBLE_AFTER_SECONDS = 600.0  # a create that is older cannot land any more
PREEMPTED = "compute.instances.preempted"

_STATUS = {
    "PROVISIONING": Status.PENDING,
    "STAGING": Status.PENDING,
    "RUNNING": Status.RUNNING,
    "PENDING_STOP": Status.STOPPING,
    "STOPPING": Status.STOPPING,
    "STOPPED": Status.STOPPED,
    "TERMINATED": Status.STOPPED,
    "SUSPENDING": Status.SUSPENDING,
    "SUSPENDED": Status.SUSPENDED,
    "REPAIRING": Status.REPAIRING,
    "DEPROVISIONING": Status.DELETING,
}
_ENDING = (Status.STOPPING, Status.STOPPED, Status.DELETING)


class ComputeInstances:
    """`providers.port.Instances` and `Console`."""

    def __init__(self, scope: Scope, compute: Compute) -> None:
        self._scope = scope
        self._compute = compute
        self._attempts: dict[str, int] = {}  # by instance and offer: attempts that are known to have failed

    @property
    def traits(self) -> port.Traits:
        return port.Traits()

    async def create(self, request: CreateRequest) -> Vm:
        project = await self._compute.project()
        body = launches.body(self._scope, request, project=project, zone=self._compute.zone)
        if request.may_exist and (found := await self._find(request.id)) is not None:
            return await self._existing(found)
        offer = "\n".join((request.id, request.market, request.instance_type, request.subnet))
        for attempt in range(self._attempts.get(offer, 0), MAX_ATTEMPTS):
            operation = await self._insert(request, body, launches.request_id(offer, attempt))
            if operation is None:  # the name is taken
                return await self._taken(request.id)
            with _after_insert():
                outcome = await self._outcome(operation, request.id)
                if not isinstance(outcome, errors.ProviderError):
                    return await self._existing(outcome)
            self._remember(offer, attempt + 1)
            if isinstance(outcome, errors.NoCapacityError):
                outcome.subject = exhausted(outcome.scope, request)
            if operation.get("status") != "DONE":
                raise outcome
            # It was done before it was asked for: an attempt of an earlier leader, so this one is the next.
            if await self._is_deleted(request.id):
                raise errors.deleted(request.id) from outcome
        raise errors.UnavailableError(f"{request.id} has failed {MAX_ATTEMPTS} times with this offer")

    async def _insert(self, request: CreateRequest, body: Answer, request_id: str) -> Answer | None:
        """The operation; None if an instance of this name exists."""
        try:
            return await self._compute.call(
                CREATE, "POST", "{zone}/instances", query={"requestId": request_id}, body=body
            )
        except errors.NotFoundError as problem:  # a subnet, an image, a disk: never an instance
            raise errors.PermanentError(str(problem), parameter=find_parameter(str(problem))) from problem
        except errors.NoCapacityError as problem:
            problem.subject = exhausted(problem.scope, request)
            raise
        except errors.PermanentError as problem:
            if status_of(problem) == 409 or reason_of(problem) in EXISTS:
                return None
            raise

    async def _outcome(self, operation: Answer, id: InstanceId) -> Answer | errors.ProviderError:
        """The instance after an insert, or what the insert failed with. Only an error inside the operation ends the wait: a
        poll that fails never does."""
        end, last = self._compute.clock.monotonic() + CREATE_SECONDS, ""
        while operation.get("status") != "DONE":
            try:
                operation = await self._compute.wait(operation)
                continue
            except errors.ProviderError as problem:
                last = f": {problem}"
            with contextlib.suppress(errors.UnavailableError, errors.ThrottledError):
                if (found := await self._find(id)) is not None:
                    return found
            if self._compute.clock.monotonic() >= end:
                raise errors.UnknownOutcomeError(f"the create of {id} is not done after {CREATE_SECONDS:.0f} s{last}")
            await self._compute.clock.sleep(PAUSE_SECONDS)
        failure = of_operation(operation, CREATE)
        if failure is not None and reason_of(failure) not in EXISTS:
            return failure
        found = await self._find(id)
        if found is not None:
            return found
        if await self._is_deleted(id):
            raise errors.deleted(id)
        raise errors.UnknownOutcomeError(f"the create of {id} is done, and Google does not show it")

    async def _taken(self, id: InstanceId) -> Vm:
        with _after_insert():
            found = await self._find(id)
            if found is None:
                raise errors.UnknownOutcomeError(f"the name {id} was taken, and Google does not show the instance")
            return await self._existing(found)

    async def _existing(self, found: Answer) -> Vm:
        vm = (await self._vms([found]))[0]
        if vm.status in _ENDING and await self._is_deleted(vm.id):
            raise errors.deleted(vm.id)
        return vm

    async def _is_deleted(self, id: InstanceId) -> bool:
        """Whether somebody has asked to delete it, by Google's own books."""
        return any(each.get("operationType") == "delete" for each in await self._compute.operations(id))

    def _remember(self, offer: str, attempts: int) -> None:
        while len(self._attempts) >= MAX_REMEMBERED:
            del self._attempts[next(iter(self._attempts))]
        self._attempts[offer] = attempts

    async def delete(self, id: InstanceId, provider_id: ProviderId | None) -> Status:
        _check_name(id, provider_id)
        found = await self._find(id)
        if found is None:
            return await self._absent(id, provider_id)
        window = int(self._compute.clock.wall() // DELETE_WINDOW_SECONDS)
        for attempt in range(MAX_DELETES):
            operation = await self._delete(id, launches.request_id(id, "delete", window, attempt), found)
            if operation is None:
                return await self._absent(id, provider_id)
            failure = of_operation(operation, DELETE) if operation.get("status") == "DONE" else None
            if failure is None:
                return Status.DELETING
        assert failure is not None
        raise failure  # of an earlier delete within the window, like those before it

    async def _delete(self, id: InstanceId, request_id: str, found: Answer) -> Answer | None:
        """The operation; None if there is no such instance."""
        try:
            query = {"requestId": request_id}
            return await self._compute.call(DELETE, "DELETE", f"{{zone}}/instances/{id}", query=query)
        except errors.NotFoundError:
            return None
        except errors.PermanentError as problem:
            if not found.get("deletionProtection"):
                raise
            raise errors.PermanentError(
                f"{id} has deletion protection; lift it with: gcloud compute instances update {id} "
                f"--zone {self._compute.zone} --no-deletion-protection"
            ) from problem

    async def _absent(self, id: InstanceId, provider_id: ProviderId | None) -> Status:
        """Deleted only if that is certain: a create may still be on its way."""
        if any(
            each.get("operationType") == "delete" and each.get("status") == "DONE" and not each.get("error")
            for each in await self._compute.operations(id)
        ):
            return Status.DELETED
        created = (ids.uuid_of(id) >> 80) / 1000
        is_old = self._compute.clock.wall() >= created + VISIBLE_AFTER_SECONDS
        return Status.DELETED if provider_id is not None and is_old else Status.DELETING

    async def get(self, id: InstanceId, provider_id: ProviderId | None) -> Vm:
        _check_name(id, provider_id)
        found = await self._find(id)
        if found is None:
            raise errors.NotFoundError(f"Google has no instance {id} in {self._compute.zone}")
        return (await self._vms([found]))[0]

    async def list(self) -> Sequence[Vm]:
        wanted = labels.filter_of(labels.owned(self._scope))
        found = await self._compute.list("compute.instances.list", "{zone}/instances", filter=wanted)
        return await self._vms([each for each in found if ids.is_instance_id(str(each.get("name")))])

    async def console_output(self, id: InstanceId, provider_id: ProviderId | None) -> str:
        _check_name(id, provider_id)
        answer = await self._compute.call(
            "compute.instances.getSerialPortOutput",
            "GET",
            f"{{zone}}/instances/{id}/serialPort",
            query={"port": "1", "start": str(-port.MAX_CONSOLE_BYTES)},
        )
        return str(answer.get("contents") or "").encode()[-port.MAX_CONSOLE_BYTES :].decode("utf-8", "replace")

    async def close(self) -> None:
        await self._compute.client.close()

    async def _find(self, id: InstanceId) -> Answer | None:
        """By its name. Raises PermanentError if it belongs to another shard."""
        try:
            found = await self._compute.call("compute.instances.get", "GET", f"{{zone}}/instances/{id}")
        except errors.NotFoundError:
            return None
        marks = _labels(found)
        check_owner(self._scope, id, marks.get(labels.CLUSTER), marks.get(labels.SHARD))
        return found

    async def _vms(self, found: Sequence[Answer]) -> Sequence[Vm]:
        preempted = await self._preempted(found)
        return [await self._vm(each, preempted) for each in found]

    async def _preempted(self, found: Sequence[Answer]) -> set[str]:
        """The names of spot VMs that Google has taken back, if one of these may be one."""
        if not any(_is_spot(each) and _STATUS.get(str(each.get("status"))) in _ENDING for each in found):
            return set()
        try:
            one = str(found[0].get("name")) if len(found) == 1 else ""
            operations = await self._compute.operations(one, kind=PREEMPTED)
        except errors.ProviderError:
            return set()  # it only says why
        return {str(each.get("targetLink")).rpartition("/")[2] for each in operations}

    async def _vm(self, found: Answer, preempted: set[str]) -> Vm:
        marks, name = _labels(found), str(found.get("name"))
        interface: Answer = (found.get("networkInterfaces") or [{}])[0]
        status = _STATUS.get(str(found.get("status")), Status.UNKNOWN)
        reason = ""
        if status in _ENDING:
            reason = "spot interruption: preempted" if name in preempted else str(found.get("statusMessage") or "")
        return Vm(
            id=InstanceId(name),
            provider_id=ProviderId(name),
            status=status,
            ip4=str(interface.get("networkIP") or ""),
            ip6=str(interface.get("ipv6Address") or ""),
            hostname=found.get("hostname") or f"{name}.{self._compute.zone}.c.{await self._compute.project()}.internal",
            cluster=ClusterId(marks[labels.CLUSTER]) if marks.get(labels.CLUSTER) else None,
            shard=ShardId(marks[labels.SHARD]) if marks.get(labels.SHARD) else None,
            tenant=TenantId(marks[labels.TENANT]) if marks.get(labels.TENANT) else None,
            group=GroupName(marks[labels.GROUP]) if marks.get(labels.GROUP) else None,
            end_reason=reason,
        )


@contextlib.contextmanager
def _after_insert() -> Iterator[None]:
    """Once an insert was sent, a lookup that fails leaves its outcome unknown, also one that is denied."""
    try:
        yield
    except (errors.UnavailableError, errors.ThrottledError) as problem:
        raise errors.UnknownOutcomeError(str(problem)) from problem
    except errors.PermanentError as problem:
        if not problem.permission:
            raise
        raise errors.UnknownOutcomeError(str(problem)) from problem


def _check_name(id: InstanceId, provider_id: ProviderId | None) -> None:
    if provider_id is not None and str(provider_id) != id:
        raise errors.PermanentError(f"{provider_id} is not the VM of {id}")


def _labels(found: Answer) -> dict[str, str]:
    marks = found.get("labels")
    return marks if isinstance(marks, dict) else {}


def _is_spot(found: Answer) -> bool:
    scheduling = found.get("scheduling") or {}
    return scheduling.get("provisioningModel") == "SPOT" or bool(scheduling.get("preemptible"))
