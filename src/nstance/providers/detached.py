"""Starting an instance's process detached from the server, so that it outlives it."""

import subprocess

from nstance.providers import errors, instance_dirs, launch, local

START_TIMEOUT_SECONDS = 10.0


def start(dirs: instance_dirs.InstanceDirs, record: instance_dirs.Record, lock: instance_dirs.Lock) -> None:
    """When this returns, the process has recorded itself. Raises UnknownOutcomeError."""
    directory = dirs.directory(record.id)
    with (directory / launch.LOG).open("ab") as log:
        launcher = subprocess.Popen(
            launch.command(directory, lock=lock.descriptor),
            env=local.clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock.descriptor,),
            start_new_session=True,
        )
    try:
        launcher.wait(START_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()
        raise errors.UnknownOutcomeError(
            f"the process of {record.id} did not start within {START_TIMEOUT_SECONDS:g} s"
        ) from None
    if dirs.process(record.id) is None:
        raise errors.UnknownOutcomeError(f"failed to start the process of {record.id}: see {directory / launch.LOG}")
