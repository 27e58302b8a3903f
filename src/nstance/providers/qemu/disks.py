"""Disks and images: an overlay for each VM, on an image that all of them share and none writes to."""

import fnmatch
import json
import os
import subprocess
from pathlib import Path

from nstance.providers import errors, port

QEMU_IMG = "qemu-img"
TIMEOUT_SECONDS = 30.0
_GIB = 1024**3


def image_format(image: Path) -> tuple[str, int]:
    """Its format, and the bytes of the disk in it."""
    answer = json.loads(_qemu_img("info", "--output=json", "-U", str(image)))
    return str(answer["format"]), int(answer["virtual-size"])


def create_overlay(disk: Path, image: Path, *, gib: int | None) -> None:
    """A disk of its own size on top of an image. Raises PermanentError for one that is smaller than the image."""
    format, size = image_format(image)
    check_gib(gib, image, size)
    wanted = size if gib is None else gib * _GIB
    _qemu_img("create", "-q", "-f", "qcow2", "-b", str(image), "-F", format, str(disk), str(wanted))


def check_gib(gib: int | None, image: Path, size: int) -> None:
    """Raises PermanentError for a disk that is smaller than its image of `size` bytes."""
    if gib is not None and gib * _GIB < size:
        raise errors.PermanentError(
            f"expected a disk of at least {-(-size // _GIB)} GiB, the size of {image}, found {gib}",
            parameter="instance_type",
        )


def create_blank(disk: Path, *, mib: int) -> None:
    _qemu_img("create", "-q", "-f", "qcow2", str(disk), f"{mib}M")


def free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def no_space(message: str) -> errors.NoCapacityError:
    return errors.NoCapacityError(message, scope=errors.CapacityScope.HOST, subject="disk of this host")


def find_newest(folder: Path | None, query: port.ImageQuery) -> Path:
    """The newest file in the folder whose name matches. Raises NotFoundError."""
    if folder is None:
        raise errors.PermanentError("expected option 'images' with the folder of the images, found none")
    unknown = [name for name in query.filters if name != "name"]
    if unknown:
        raise errors.PermanentError(f"provider 'qemu' finds images by the filter 'name', found {unknown[0]!r}")
    patterns = query.filters.get("name") or ("*",)
    found = [
        path
        for path in folder.iterdir()
        if path.is_file() and any(fnmatch.fnmatchcase(path.name, pattern) for pattern in patterns)
    ]
    if not found:
        raise errors.NotFoundError(f"no image in {folder} matches {', '.join(patterns)}")
    return max(found, key=lambda path: (path.stat().st_mtime, path.name))


def _qemu_img(*arguments: str) -> str:
    try:
        answer = subprocess.run(
            [QEMU_IMG, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise errors.PermanentError("expected the program qemu-img, found none; install QEMU's tools") from None
    except subprocess.TimeoutExpired:
        raise errors.UnavailableError(f"qemu-img {arguments[0]}: no answer within {TIMEOUT_SECONDS:g} s") from None
    if answer.returncode != 0:
        message = answer.stderr.strip().removeprefix("qemu-img: ")
        if "No space left" in message:
            raise no_space(message)
        raise errors.PermanentError(f"qemu-img {arguments[0]}: {message}", parameter="Image")
    return answer.stdout
