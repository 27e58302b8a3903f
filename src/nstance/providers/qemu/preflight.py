"""What would fail on this host when VMs of a configuration are created. Nothing is changed."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nstance.providers import errors, machine_size
from nstance.providers.machine_size import MachineSize
from nstance.providers.port import CloudPlan, Fault, PlannedLaunch
from nstance.providers.qemu import arguments, disks, saved_state
from nstance.providers.qemu.settings import QemuSettings

_NETWORKS = Path("/sys/class/net")


def find_faults(plan: CloudPlan, settings: QemuSettings, memory_mib: int) -> Sequence[Fault]:
    faults = [
        Fault(("shard", "subnet_pools", pool, number), f"this host has no bridge {name}")
        for pool, names in plan.subnet_pools.items()
        for number, name in enumerate(names)
        if not (_NETWORKS / name).is_dir()
    ]
    if settings.bridge and not (_NETWORKS / settings.bridge).is_dir():
        faults.append(Fault(("shard", "infra", "options", "bridge"), f"this host has no bridge {settings.bridge}"))
    if settings.images is not None and not settings.images.is_dir():
        faults.append(Fault(("shard", "infra", "options", "images"), f"there is no folder {settings.images}"))
    for launch in plan.launches:
        faults += _of_launch(launch, settings, memory_mib)
    return list(dict.fromkeys(faults))


def _of_launch(launch: PlannedLaunch, settings: QemuSettings, memory_mib: int) -> Iterator[Fault]:
    path = ("templates", launch.template)
    checks: list[Callable[[MachineSize], None]] = []  # of an instance type; raise PermanentError
    try:
        args = arguments.parse(launch.args, images=settings.images)
        if (image := args.image) is not None:
            _, size = disks.image_format(image)
            checks.append(lambda wanted: disks.check_gib(wanted.disk_gib, image, size))
        if (folder := args.state) is not None:
            state = saved_state.read(folder, binary=settings.binary, acceleration=settings.acceleration)
            checks.append(lambda wanted: state.check_size(wanted, folder))
    except errors.PermanentError as problem:
        yield Fault((*path, "args", *([problem.parameter] if problem.parameter else [])), str(problem))
    except errors.ProviderError as problem:
        yield Fault((*path, "args"), str(problem))
    for text in filter(None, launch.instance_types):
        try:
            wanted = machine_size.parse(text)
            if wanted.memory_mib > memory_mib:
                raise errors.PermanentError(f"expected at most {memory_mib} MiB for all VMs, found {wanted.memory_mib}")
            for check in checks:
                check(wanted)
        except errors.PermanentError as problem:
            yield Fault((*path, "instance_type"), str(problem))
