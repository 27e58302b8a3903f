"""Real VMs on one Linux host: a VM is a QEMU process that outlives the server and is found again.

Directories, locks and crash safety are those of the other local providers (see `local`): the directory with the disk and
the seed appears complete or not at all, and the process records itself before it becomes QEMU. QEMU ends with its guest
(power-off, kernel panic), so a dead process is a stopped VM. A paused VM counts as running: the rules for unresponsive
agents decide about it. The exception: QEMU pauses a guest that writes to a full disk of the host. That is no fault of the
guest, so it is continued here when there is room.
"""

import base64
import contextlib
import errno
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nstance import clock as clocks
from nstance.model.ids import InstanceId
from nstance.providers import (
    detached,
    errors,
    instance_dirs,
    launch,
    local,
    machine_size,
    port,
    processes,
    seed_iso,
)
from nstance.providers.qemu import arguments, disks, events, kill_mode, machine, preflight, qmp, saved_state
from nstance.providers.qemu.machine import Boot, Machine
from nstance.providers.qemu.settings import QemuSettings

DEFAULT_SIZE = machine_size.MachineSize(cpus=1, memory_mib=512)
MAX_CONSOLE_FILE_BYTES = 8 * 1024 * 1024
_USABLE_MEMORY = 0.9  # of the host, unless option `memory_mib` says otherwise
_BLANK_DISK_MIB = 1
_ANSWER_STEP_SECONDS = 0.02
_ANSWER_STEPS = 500  # 10 seconds
_ENTROPY_BYTES = 64
_SHUTDOWN = "shutdown-since"
_LOOK_TIMEOUT_SECONDS = 1.0  # of a VM in a listing
_ROOM_BYTES = 1024 * 1024  # without so much, a guest that is continued would pause again
_RECOVERY_SECONDS = 60.0  # after a pause, for the agent to be heard again
DISK_FULL = "the disk of the host is full: QEMU paused the guest, which continues when there is room"
_OUT_OF_MEMORY = ("cannot set up guest memory", "annot allocate memory")


class QemuProvider(local.LocalProvider, port.Images, port.Preflight):
    scheme = "qemu"

    def __init__(self, scope: port.Scope, clock: clocks.Clock, rng: clocks.Rng, settings: QemuSettings) -> None:
        super().__init__(scope, dir=settings.dir, command=(settings.binary,))
        self._clock, self._rng = clock, rng
        self._settings = settings
        self._recovers_until: dict[InstanceId, float] = {}
        self._memory_mib = settings.memory_mib or round(host_memory_mib() * _USABLE_MEMORY)

    @property
    def traits(self) -> port.Traits:
        return port.Traits(is_consistent=True)

    async def find_image(self, query: port.ImageQuery) -> str:
        return str(await self._off_loop(lambda: disks.find_newest(self._settings.images, query)))

    async def preflight(self, plan: port.CloudPlan) -> Sequence[port.Fault]:
        return await self._off_loop(lambda: preflight.find_faults(plan, self._settings, self._memory_mib))

    # ---- create

    def _make_directory(self, request: port.CreateRequest) -> instance_dirs.Record:
        """Everything that can be wrong is checked before anything is created."""
        if len(request.userdata) > seed_iso.MAX_USERDATA_BYTES:
            raise errors.PermanentError(
                f"expected at most {seed_iso.MAX_USERDATA_BYTES} bytes of userdata, found {len(request.userdata)}",
                parameter="userdata",
            )
        args = arguments.parse(request.args, images=self._settings.images)
        planned, image = self._machine(request, args)
        env = {**local.clean_environment(), "NSTANCE_INSTANCE_ID": request.id}
        record = self._record(request, planned.command(), env)
        # What a guest must not share with another one that was restored from the same state.
        fresh = {
            "mac-address": machine.mac_address(request.id),
            "random-seed": base64.b64encode(self._rng.bytes(_ENTROPY_BYTES)).decode(),
        }
        seed = seed_iso.seed(request.id, request.userdata, extra=fresh)

        def fill(draft: Path) -> None:
            machine.make_files(draft, seed)
            if image is None:
                disks.create_blank(draft / machine.DISK, mib=_BLANK_DISK_MIB)
            else:
                disks.create_overlay(draft / machine.DISK, image, gib=planned.size.disk_gib)

        with self._dirs.lock_all():  # of two creates at once, the second counts the first
            self._check_memory(planned.size.memory_mib)
            try:
                self._dirs.create(record, {}, fill=fill)
            except OSError as problem:
                if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise disks.no_space(str(problem)) from problem
        return record

    def _machine(self, request: port.CreateRequest, args: arguments.Arguments) -> tuple[Machine, Path | None]:
        """The machine, and the image below its disk."""
        settings = self._settings
        size = machine_size.parse(request.instance_type) if request.instance_type else None
        boot, image = Boot(kernel=args.kernel, initrd=args.initrd, append=args.append), args.image
        if args.state is not None:
            state = saved_state.read(args.state, binary=settings.binary, acceleration=settings.acceleration)
            if size is not None:
                state.check_size(size, args.state)
            size, boot, image = state.machine_size, state.boot(args.state), (args.state / machine.DISK).absolute()
        planned = Machine(
            name=request.id,
            binary=settings.binary,
            acceleration=settings.acceleration,
            size=size or DEFAULT_SIZE,
            boot=boot,
            bridge=request.subnet or settings.bridge,
        )
        return planned, image

    def _check_memory(self, wanted: int) -> None:
        """The memory of all living VMs of this folder counts, also what they have not touched yet."""
        used = 0
        for id in self._dirs.ids():
            with contextlib.suppress(instance_dirs.UnreadableError):
                record, process = self._dirs.read(id), self._dirs.process(id)
                if record is not None and (process is None or processes.is_running(process)):
                    used += machine.memory_of(record.command)
        if used + wanted > self._memory_mib:
            raise errors.NoCapacityError(
                f"expected {wanted} MiB of free memory for a VM, found {max(0, self._memory_mib - used)} MiB of "
                f"{self._memory_mib} MiB",
                scope=errors.CapacityScope.HOST,
                subject="memory of this host",
            )

    def _start(self, record: instance_dirs.Record, lock: instance_dirs.Lock) -> None:
        detached.start(self._dirs, record, lock)
        directory = self._dirs.directory(record.id)
        for _ in range(_ANSWER_STEPS):
            with contextlib.suppress(qmp.QmpError), qmp.monitor(directory) as monitor:
                monitor.execute("query-status")
                return
            process = self._dirs.process(record.id)
            if process is None or not processes.is_running(process):
                raise self._refused(record.id)
            time.sleep(_ANSWER_STEP_SECONDS)
        raise errors.UnknownOutcomeError(f"QEMU of {record.id} does not answer: see {directory / launch.LOG}")

    def _refused(self, id: InstanceId) -> errors.ProviderError:
        """QEMU ended before its guest started: nothing was created, so nothing stays."""
        text = self._dirs.tail(id, port.MAX_CONSOLE_BYTES).decode(errors="replace").strip()
        self._dirs.remove(id)
        if any(each in text for each in _OUT_OF_MEMORY):
            return errors.NoCapacityError(text, scope=errors.CapacityScope.HOST, subject="memory of this host")
        return errors.PermanentError(f"QEMU refused to start: {text or 'it said nothing'}")

    def _on_started(self, record: instance_dirs.Record) -> None:
        """Nothing to do: a restored machine continues by itself."""

    # ---- look

    def _list(self) -> Sequence[port.Vm]:
        vms = super()._list()
        for vm in vms:
            if vm.cluster is not None:
                self._cut_console(vm.id)
        return vms

    def _describe(self, record: instance_dirs.Record) -> port.Vm:
        vm = super()._describe(record)
        if vm.status is port.Status.STOPPED:
            vm = replace(vm, end_reason=events.end_reason(self._dirs.directory(record.id)))
        elif vm.status is port.Status.RUNNING:
            is_paused, now = self._is_paused(record.id), self._clock.monotonic()
            # Its agent was silent meanwhile, which says nothing about the guest.
            if is_paused or now < self._recovers_until.get(record.id, now):
                vm = replace(vm, status=port.Status.REPAIRING, problem=DISK_FULL if is_paused else "")
        # On a bridge the network gives the address, and the agent reports it.
        return replace(vm, ip4="") if "user,id=net" not in record.command else vm

    def _is_paused(self, id: InstanceId) -> bool:
        """Whether the guest is paused because the disk is full. If there is room again, it continues."""
        directory = self._dirs.directory(id)
        with contextlib.suppress(qmp.QmpError), qmp.monitor(directory, timeout=_LOOK_TIMEOUT_SECONDS) as monitor:
            if monitor.execute("query-status").get("status") == "io-error":
                now = self._clock.monotonic()
                self._recovers_until = {id: at for id, at in self._recovers_until.items() if at > now}
                self._recovers_until[id] = now + _RECOVERY_SECONDS
                if disks.free_bytes(self._dirs.root) < _ROOM_BYTES:
                    return True
                monitor.execute("cont")
        return False

    def _console(self, id: InstanceId) -> bytes:
        """What the guest printed; what QEMU printed if the guest printed nothing."""
        return self._dirs.tail(id, port.MAX_CONSOLE_BYTES, name=machine.CONSOLE) or super()._console(id)

    def _cut_console(self, id: InstanceId) -> None:
        """A guest may print forever. QEMU appends, so that the file can be cut below it."""
        path = self._dirs.directory(id) / machine.CONSOLE
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > MAX_CONSOLE_FILE_BYTES:
                newest = self._dirs.tail(id, port.MAX_CONSOLE_BYTES, name=machine.CONSOLE)
                os.truncate(path, 0)
                with path.open("ab") as console:
                    console.write(newest)

    # ---- delete

    def _end(self, id: InstanceId, process: processes.Process) -> bool:
        if processes.is_running(process) and self._may_shut_down(id):
            return False
        return super()._end(id, process)

    def _may_shut_down(self, id: InstanceId) -> bool:
        """Press the power button once; then the guest has its time. The time is in a file, because any server may repeat the
        delete."""
        if self._settings.shutdown_seconds <= 0:
            return False
        path = self._dirs.directory(id) / _SHUTDOWN
        now = self._clock.wall()
        try:
            since = float(path.read_text())
        except FileNotFoundError:
            path.write_text(repr(now))
            with contextlib.suppress(qmp.QmpError), qmp.monitor(path.parent) as monitor:
                monitor.execute("system_powerdown")
                return True
            return False
        except ValueError:
            return False
        return 0 <= now - since < self._settings.shutdown_seconds

    def _on_ended(self, id: InstanceId) -> None:
        """Nothing to do: all it had is in its directory."""


def open_qemu(scope: port.Scope, clock: clocks.Clock, rng: clocks.Rng, settings: QemuSettings) -> QemuProvider:
    """Raises PermanentError if a program is missing, or VMs would not outlive the server."""
    if problem := kill_mode.why_vms_end():
        raise errors.PermanentError(problem)
    for program in (settings.binary, disks.QEMU_IMG):
        if shutil.which(program) is None:
            raise errors.PermanentError(f"expected the program {program}, found none; install QEMU, see docs/qemu.md")
    return QemuProvider(scope, clock, rng, settings)


def host_memory_mib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024**2
