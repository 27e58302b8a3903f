"""A template's `args` for QEMU, checked before anything is created."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nstance.providers import errors

NAMES = ("Image", "Kernel", "Initrd", "Append", "State")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    image: Path | None = None  # None: a blank disk
    kernel: str = ""
    initrd: str = ""
    append: str = ""
    state: Path | None = None


def parse(args: Mapping[str, object], *, images: Path | None) -> Arguments:
    """Raises PermanentError with the name of the first bad argument."""
    for name, value in args.items():
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(NAMES)}"
            raise errors.PermanentError(f"provider 'qemu' has no argument {name!r}; {hint}", parameter=name)
        if not isinstance(value, str):
            raise errors.PermanentError(
                f"expected a text in argument {name}, found {type(value).__name__}", parameter=name
            )
    texts = {name: str(value) for name, value in args.items() if value}
    if "State" in texts and len(texts) > 1:
        other = next(name for name in texts if name != "State")
        raise errors.PermanentError(
            f"expected no {other} beside State: a saved state has its own disk and kernel; remove one", parameter=other
        )
    state = texts.get("State")
    return Arguments(
        image=_file("Image", texts, images),
        kernel=str(_file("Kernel", texts, images) or ""),
        initrd=str(_file("Initrd", texts, images) or ""),
        append=texts.get("Append", ""),
        state=None if state is None else _place("State", state, images),
    )


def _file(name: str, texts: Mapping[str, str], images: Path | None) -> Path | None:
    if name not in texts:
        return None
    path = _place(name, texts[name], images)
    if not path.is_file():
        raise errors.PermanentError(f"expected a file in argument {name}, found none at {path}", parameter=name)
    return path


def _place(name: str, text: str, images: Path | None) -> Path:
    """A path that is not absolute is in the folder of images."""
    path = Path(text)
    if path.is_absolute():
        return path
    if images is None:
        raise errors.PermanentError(
            f"expected an absolute path, or option 'images' with the folder of {text!r}, found neither", parameter=name
        )
    return images.absolute() / path
