"""What the providers that run agents on this machine have in common: everything but how an agent is started.

A VM is a home (see `homes`) and a process in it. No process yet is pending, a living one is running, a dead one or a
zombie is stopped. The trap: the server may die between any two lines here. A create repeats its missing steps under
the instance's lock; a delete marks the ID as deleted before it ends the process, so that nothing can bring it back.
"""

import abc
import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, TypeVar

from nstance.model.ids import InstanceId, ProviderId
from nstance.providers import errors, instance_dirs, port, processes

# As its entry point calls it, but with this interpreter, whether or not the scripts are installed.
AGENT = (sys.executable, "-c", "import sys; from nstance.agent.main import main; sys.exit(main())")
GRACE = 2.0  # seconds an agent has to say goodbye
_THREADS = 32  # as many as creates run at once
_ADDRESS = "127.0.0.1"
# What an agent may see of the server's environment. Everything else may be a secret.
_ALLOWED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "VIRTUAL_ENV",
    "PYTHONPATH",
)

T = TypeVar("T")


def clean_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _ALLOWED if name in os.environ}


class LocalProvider(port.Instances, port.Console, abc.ABC):
    scheme: ClassVar[str]  # of its provider IDs

    def __init__(
        self, scope: port.Scope, *, dir: Path, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> None:
        self._scope = scope
        self._command = tuple(command)
        self._env = {**clean_environment(), **(env or {})}
        self._homes = instance_dirs.InstanceDirs(dir.absolute())
        self._homes.prepare()
        self._homes.sweep()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"nstance-{self.scheme}")

    @property
    def traits(self) -> port.Traits:
        return port.Traits(is_consistent=True, reads_userdata=False)

    async def create(self, request: port.CreateRequest) -> port.Vm:
        return await self._off_loop(lambda: self._create(request))

    async def delete(self, id: InstanceId, provider_id: ProviderId | None) -> port.Status:
        return await self._off_loop(lambda: self._delete(id, provider_id))

    async def get(self, id: InstanceId, provider_id: ProviderId | None) -> port.Vm:
        return await self._off_loop(lambda: self._get(id, provider_id))

    async def list(self) -> Sequence[port.Vm]:
        return await self._off_loop(self._list)

    async def console_output(self, id: InstanceId, provider_id: ProviderId | None) -> str:
        def read() -> str:
            self._get(id, provider_id)
            return self._homes.tail(id, port.MAX_CONSOLE_BYTES).decode(errors="replace")

        return await self._off_loop(read)

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)

    @abc.abstractmethod
    def _start(self, record: instance_dirs.Record, held: instance_dirs.Held) -> None:
        """Start the agent; its process has recorded itself when this returns."""

    @abc.abstractmethod
    def _started(self, record: instance_dirs.Record) -> None:
        """Whatever else there is for an instance whose agent was started. Repeated with each repeated create."""

    @abc.abstractmethod
    def _ended(self, id: InstanceId) -> None:
        """Take away what `_start` and `_started` made beside the home. Repeated with each repeated delete."""

    async def _off_loop(self, work: Callable[[], T]) -> T:
        def run() -> T:
            try:
                return work()
            except instance_dirs.UnreadableError as error:
                raise errors.UnknownOutcomeError(f"{error}; repair or remove it by hand") from error
            except OSError as error:
                raise errors.UnavailableError(f"{self.scheme} provider: {error}") from error

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def _create(self, request: port.CreateRequest) -> port.Vm:
        self._homes.prepare()
        with self._homes.hold(request.id) as held:
            if held.deleted:
                raise errors.PermanentError(f"{request.id} was deleted; a new instance needs a new ID")
            record = self._homes.read(request.id)
            if record is None:
                record = self._make(request)
            self._refuse_foreign(record)
            with self._in_doubt(f"create of {request.id}"):
                if self._homes.process(request.id) is None:
                    self._start(record, held)
                self._started(record)
                return self._show(record)

    def _make(self, request: port.CreateRequest) -> instance_dirs.Record:
        if shutil.which(self._command[0], path=self._env.get("PATH", os.defpath)) is None:
            raise errors.PermanentError(f"expected a program in option 'command', found no {self._command[0]!r}")
        record = instance_dirs.Record(
            id=request.id,
            cluster=self._scope.cluster,
            shard=self._scope.shard,
            tenant=request.tenant,
            group=request.group,
            kind=request.kind,
            template=request.template,
            created=request.created,
            command=self._command,
            env=self._agent_environment(request),
        )
        self._homes.make(record, {"ca.crt": request.ca_certificate, "nonce.jwt": request.nonce})
        return record

    def _agent_environment(self, request: port.CreateRequest) -> dict[str, str]:
        home = self._homes.home(request.id)
        return {
            "NSTANCE_PROVIDER": "none",
            "NSTANCE_REPORT_INTERVAL": f"{round(request.report_interval * 1000)}ms",
            **self._env,
            "NSTANCE_SERVER_REGISTRATION_ADDR": request.registration_addr,
            "NSTANCE_SERVER_AGENT_ADDR": request.agent_addr,
            "NSTANCE_INSTANCE_ID": request.id,
            "NSTANCE_INSTANCE_KIND": request.kind,
            "NSTANCE_INSTANCE_HOSTNAME": request.id,
            "NSTANCE_INSTANCE_FQDN": request.id,
            "NSTANCE_INSTANCE_IPV4": _ADDRESS,
            "NSTANCE_IDENTITY_DIR": str(home / "identity"),
            "NSTANCE_KEYS_DIR": str(home / "keys"),
            "NSTANCE_RECV_DIR": str(home / "recv"),
        }

    def _delete(self, id: InstanceId, provider_id: ProviderId | None) -> port.Status:
        self._refuse_other(id, provider_id)
        with self._homes.hold(id) as held:
            self._refuse_undeletable(id, provider_id)
            self._homes.bury(held)
            with self._in_doubt(f"delete of {id}"):
                process = self._homes.process(id)
                if process is not None and not processes.end(process, mark=f"NSTANCE_INSTANCE_ID={id}", grace=GRACE):
                    return port.Status.DELETING
                self._ended(id)
                self._homes.remove(id)
        return port.Status.DELETED

    def _refuse_undeletable(self, id: InstanceId, provider_id: ProviderId | None) -> None:
        """Another's instance; one whose process is not known for sure; or one whose record is damaged, unless the caller
        knows it by our provider ID."""
        try:
            process = self._homes.process(id)
            try:
                record = self._homes.read(id)
            except instance_dirs.UnreadableError:
                if provider_id is None or process is None:
                    raise
                return
        except instance_dirs.UnreadableError as error:
            raise errors.PermanentError(f"{error}; in doubt nothing is deleted: remove it by hand") from error
        if record is not None:
            self._refuse_foreign(record)

    def _get(self, id: InstanceId, provider_id: ProviderId | None) -> port.Vm:
        self._refuse_other(id, provider_id)
        try:
            record = self._homes.read(id)
        except instance_dirs.UnreadableError:
            return self._damaged(id)
        if record is None:
            raise errors.NotFoundError(f"there is no instance {id} in {self._homes.root}")
        self._refuse_foreign(record)
        return self._show(record)

    def _list(self) -> Sequence[port.Vm]:
        found = []
        for id in self._homes.ids():
            try:
                record = self._homes.read(id)
            except instance_dirs.UnreadableError:
                # It may be ours. Without tags it is nobody's orphan, and its status says nothing against it.
                found.append(self._damaged(id))
                continue
            if record is not None and self._owns(record):
                found.append(self._show(record))
        return found

    def _show(self, record: instance_dirs.Record) -> port.Vm:
        return port.Vm(
            id=record.id,
            provider_id=self._provider_id(record.id),
            status=self._status(record.id),
            ip4=_ADDRESS,
            hostname=record.id,
            cluster=record.cluster,
            shard=record.shard,
            tenant=record.tenant,
            group=record.group,
        )

    def _damaged(self, id: InstanceId) -> port.Vm:
        return port.Vm(id=id, provider_id=self._provider_id(id), status=port.Status.UNKNOWN)

    def _status(self, id: InstanceId) -> port.Status:
        if self._homes.deleted(id):
            return port.Status.DELETING
        try:
            process = self._homes.process(id)
        except instance_dirs.UnreadableError:
            return port.Status.UNKNOWN
        if process is None:
            return port.Status.PENDING
        return port.Status.RUNNING if processes.runs(process) else port.Status.STOPPED

    def _provider_id(self, id: InstanceId) -> ProviderId:
        return ProviderId(f"{self.scheme}:///{self._scope.shard}/{id}")

    def _owns(self, record: instance_dirs.Record) -> bool:
        return (record.cluster, record.shard) == (self._scope.cluster, self._scope.shard)

    def _refuse_foreign(self, record: instance_dirs.Record) -> None:
        if not self._owns(record):
            raise errors.PermanentError(
                f"expected {record.id} to belong to shard {self._scope.shard} of cluster {self._scope.cluster}, "
                f"found shard {record.shard} of cluster {record.cluster}"
            )

    def _refuse_other(self, id: InstanceId, provider_id: ProviderId | None) -> None:
        if provider_id not in (None, self._provider_id(id)):
            raise errors.PermanentError(f"expected provider ID {self._provider_id(id)}, found {provider_id}")

    @contextmanager
    def _in_doubt(self, what: str) -> Iterator[None]:
        """From a certain step on, a failure leaves something behind."""
        try:
            yield
        except OSError as error:
            raise errors.UnknownOutcomeError(f"{what}: {error}; repeat it with the same ID") from error
