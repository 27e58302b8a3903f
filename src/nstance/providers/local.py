"""The common part of providers whose VMs are processes on this machine: agents, or QEMU.

A VM is an instance directory (see `instance_dirs`) and a process. No process yet means pending, a living one running, a
dead one or a zombie stopped. The trap: the server may die between any two lines here. A repeated create does the missing
steps under the instance's lock; a delete marks the ID as deleted before it ends the process, so that nothing can bring
it back.
"""

import abc
import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, TypeVar

from nstance.model import ids
from nstance.model.ids import InstanceId, ProviderId
from nstance.providers import errors, instance_dirs, port, processes

# Like its entry point, but with this interpreter and without installed scripts.
AGENT = (sys.executable, "-c", "import sys; from nstance.agent.main import main; sys.exit(main())")
GRACE_SECONDS = 2.0  # for an agent to say goodbye
_THREADS = 32  # the default number of concurrent creates
_ADDRESS = "127.0.0.1"
# The only variables of the server that an agent inherits: the others may be secrets.
_INHERITED_VARIABLES = (
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
    return {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}


def marker(scope: port.Scope) -> str:
    """The file that says that a folder has the instances of a shard."""
    return f".shard.{scope.cluster}.{scope.shard}"


def _mark(id: InstanceId) -> str:
    """In the environment of every process of an instance."""
    return f"NSTANCE_INSTANCE_ID={id}"


class LocalProvider(port.Instances, port.Console, port.Folder, abc.ABC):
    scheme: ClassVar[str]  # of its provider IDs

    def __init__(
        self, scope: port.Scope, *, dir: Path, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> None:
        self._scope = scope
        self._command = tuple(command)
        self._env = {**clean_environment(), **(env or {})}
        self._dirs = instance_dirs.InstanceDirs(dir.absolute(), marker=marker(scope))
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"nstance-{self.scheme}")

    @property
    def traits(self) -> port.Traits:
        return port.Traits(is_consistent=True, reads_userdata=False)

    async def open_folder(self, known: Collection[ProviderId]) -> None:
        await self._off_loop(lambda: self._open_folder(known))

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
            return self._console(id).decode(errors="replace")

        return await self._off_loop(read)

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)

    @abc.abstractmethod
    def _start(self, record: instance_dirs.Record, lock: instance_dirs.Lock) -> None:
        """Start the agent. When this returns, its process has recorded itself."""

    @abc.abstractmethod
    def _on_started(self, record: instance_dirs.Record) -> None:
        """Called after the agent was started, also by each repeated create."""

    @abc.abstractmethod
    def _on_ended(self, id: InstanceId) -> None:
        """Remove what `_start` and `_on_started` created outside the directory. Called also by each repeated delete."""

    async def _off_loop(self, work: Callable[[], T]) -> T:
        def run() -> T:
            try:
                return work()
            except instance_dirs.UnreadableError as error:
                raise errors.UnknownOutcomeError(f"{error}; repair or remove it") from error
            except OSError as error:
                raise errors.UnavailableError(f"{self.scheme} provider: {error}") from error

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def _open_folder(self, known: Collection[ProviderId]) -> None:
        if self._has_own() or not self._may_be_elsewhere(known):
            self._dirs.prepare()
        self._dirs.check_root()
        self._dirs.sweep()

    def _may_be_elsewhere(self, known: Collection[ProviderId]) -> bool:
        """Whether one of these VMs runs on this machine, or may be on a disk that was not mounted since it started."""
        prefix = self._provider_id(InstanceId(""))
        mine = [InstanceId(id.removeprefix(prefix)) for id in known if id.startswith(prefix)]
        booted = processes.boot_time()
        return any(ids.created_at(id) < booted for id in mine) or processes.may_run([_mark(id) for id in mine])

    def _has_own(self) -> bool:
        for id in self._dirs.ids() if self._dirs.root.is_dir() else ():
            with suppress(instance_dirs.UnreadableError):
                record = self._dirs.read(id)
                if record is not None and self._owns(record):
                    return True
        return False

    def _create(self, request: port.CreateRequest) -> port.Vm:
        with self._dirs.lock(request.id) as lock:
            if lock.is_deleted:
                raise errors.deleted(request.id)
            record = self._dirs.read(request.id)
            if record is None:
                record = self._make_directory(request)
            self._check_owner(record)
            with self._unknown_on_error(f"create of {request.id}"):
                if self._dirs.process(request.id) is None:
                    self._start(record, lock)
                self._on_started(record)
                return self._describe(record)

    def _console(self, id: InstanceId) -> bytes:
        return self._dirs.tail(id, port.MAX_CONSOLE_BYTES)

    def _make_directory(self, request: port.CreateRequest) -> instance_dirs.Record:
        if shutil.which(self._command[0], path=self._env.get("PATH", os.defpath)) is None:
            raise errors.PermanentError(f"expected a program in option 'command', found no {self._command[0]!r}")
        record = self._record(request, self._command, self._agent_environment(request))
        self._dirs.create(record, {"ca.crt": request.ca_certificate, "nonce.jwt": request.nonce})
        return record

    def _record(
        self, request: port.CreateRequest, command: Sequence[str], env: Mapping[str, str]
    ) -> instance_dirs.Record:
        return instance_dirs.Record(
            id=request.id,
            cluster=self._scope.cluster,
            shard=self._scope.shard,
            tenant=request.tenant,
            group=request.group,
            kind=request.kind,
            template=request.template,
            created=request.created,
            command=tuple(command),
            env=env,
        )

    def _agent_environment(self, request: port.CreateRequest) -> dict[str, str]:
        directory = self._dirs.directory(request.id)
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
            "NSTANCE_IDENTITY_DIR": str(directory / "identity"),
            "NSTANCE_KEYS_DIR": str(directory / "keys"),
            "NSTANCE_RECV_DIR": str(directory / "recv"),
        }

    def _delete(self, id: InstanceId, provider_id: ProviderId | None) -> port.Status:
        self._check_provider_id(id, provider_id)
        with self._dirs.lock(id) as lock:
            self._check_deletable(id, provider_id)
            self._dirs.mark_deleted(lock)
            with self._unknown_on_error(f"delete of {id}"):
                process = self._dirs.process(id)
                if process is not None and not self._end(id, process):
                    return port.Status.DELETING
                self._on_ended(id)
                self._dirs.remove(id)
        return port.Status.DELETED

    def _end(self, id: InstanceId, process: processes.Process) -> bool:
        """End the process. Returns whether it is positively dead; if not, the delete is repeated."""
        return processes.end(process, mark=_mark(id), grace=GRACE_SECONDS)

    def _check_deletable(self, id: InstanceId, provider_id: ProviderId | None) -> None:
        """Raises for an instance of another owner, one whose process is not known for sure, and one whose record is damaged,
        unless the caller has its provider ID."""
        try:
            process = self._dirs.process(id)
            try:
                record = self._dirs.read(id)
            except instance_dirs.UnreadableError:
                if provider_id is None or process is None:
                    raise
                return
        except instance_dirs.UnreadableError as error:
            raise errors.PermanentError(f"{error}; in doubt nothing is deleted: remove it by hand") from error
        if record is not None:
            self._check_owner(record)

    def _get(self, id: InstanceId, provider_id: ProviderId | None) -> port.Vm:
        self._check_provider_id(id, provider_id)
        try:
            record = self._dirs.read(id)
        except instance_dirs.UnreadableError:
            return self._damaged(id)
        if record is None:
            raise errors.NotFoundError(f"there is no instance {id} in {self._dirs.root}")
        self._check_owner(record)
        return self._describe(record)

    def _list(self) -> Sequence[port.Vm]:
        self._dirs.check_root()
        ids = self._dirs.ids()
        self._dirs.check_root()  # it may have gone a moment before
        found = []
        for id in ids:
            try:
                record = self._dirs.read(id)
            except instance_dirs.UnreadableError:
                # It may belong to this shard. Without tags and with an unknown status nothing happens to it.
                found.append(self._damaged(id))
                continue
            if record is not None and self._owns(record):
                found.append(self._describe(record))
        return found

    def _describe(self, record: instance_dirs.Record) -> port.Vm:
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
        if self._dirs.is_deleted(id):
            return port.Status.DELETING
        try:
            process = self._dirs.process(id)
        except instance_dirs.UnreadableError:
            return port.Status.UNKNOWN
        if process is None:
            return port.Status.PENDING
        return port.Status.RUNNING if processes.is_running(process) else port.Status.STOPPED

    def _provider_id(self, id: InstanceId) -> ProviderId:
        return ProviderId(f"{self.scheme}:///{self._scope.shard}/{id}")

    def _owns(self, record: instance_dirs.Record) -> bool:
        return (record.cluster, record.shard) == (self._scope.cluster, self._scope.shard)

    def _check_owner(self, record: instance_dirs.Record) -> None:
        if not self._owns(record):
            raise errors.PermanentError(
                f"expected {record.id} to belong to shard {self._scope.shard} of cluster {self._scope.cluster}, "
                f"found shard {record.shard} of cluster {record.cluster}"
            )

    def _check_provider_id(self, id: InstanceId, provider_id: ProviderId | None) -> None:
        if provider_id not in (None, self._provider_id(id)):
            raise errors.PermanentError(f"expected provider ID {self._provider_id(id)}, found {provider_id}")

    @contextmanager
    def _unknown_on_error(self, what: str) -> Iterator[None]:
        """After its first effect, a failed operation has an unknown outcome."""
        try:
            yield
        except OSError as error:
            raise errors.UnknownOutcomeError(f"{what}: {error}; repeat it with the same ID") from error
