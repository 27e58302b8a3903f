"""What every input must come to: success or one of the declared errors, soon, and without growth.

A target is one function of bytes. Everything else that it raises is a defect, and so are running too long (in processor
time, so that a busy machine is not blamed) and memory that the input does not explain. The trap: a parser that recurses
into its input fails with RecursionError, which no parser declares.
"""

import importlib
import pkgutil
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

CORPUS = Path(__file__).parent / "corpus"
SECONDS = 5.0  # of processor time for one input
MEGABYTES = 256.0  # that the process may grow by, for one input
LONGEST = 1 << 17  # bytes of an input; the longest in the corpus are shorter


class Broken(AssertionError):
    """The law was broken; the cause is the exception behind it."""


class Hang(BaseException):
    """A BaseException, so that no parser catches it by accident."""


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    run: Callable[[bytes], None]
    declared: tuple[type[Exception], ...]
    words: tuple[bytes, ...]  # what mutations put in

    @property
    def corpus(self) -> Path:
        return CORPUS / self.name

    def seeds(self) -> dict[str, bytes]:
        return {path.name: entry(path) for path in sorted(self.corpus.iterdir())}


TARGETS: dict[str, Target] = {}
CLOSING: list[Callable[[], None]] = []  # what targets keep between two inputs, and give back at the end


def target(
    name: str, *declared: type[Exception], words: tuple[bytes, ...] = ()
) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    def register(run: Callable[[bytes], None]) -> Callable[[bytes], None]:
        TARGETS[name] = Target(name, run, declared, words)
        return run

    return register


def entry(path: Path) -> bytes:
    """An input from the corpus. `name.times-5000` holds a beginning, a piece and an end with @@ in between: the piece is
    meant 5,000 times."""
    data, times = path.read_bytes(), path.suffix.removeprefix(".times-")
    if times == path.suffix:
        return data
    before, piece, after = data.split(b"@@")
    return before + piece * int(times) + after


def load_targets() -> dict[str, Target]:
    """All of them, by name."""
    from fuzz import targets

    for module in pkgutil.iter_modules(targets.__path__):
        importlib.import_module(f"fuzz.targets.{module.name}")
    return dict(sorted(TARGETS.items()))


def load_target(name: str) -> Target:
    """One target by name: importing the others takes time."""
    for path in sorted((Path(__file__).parent / "targets").glob("*.py")):
        if f'"{name}"' in path.read_text():
            importlib.import_module(f"fuzz.targets.{path.stem}")
            if name in TARGETS:
                break
    return TARGETS[name]


def judge(target: Target, data: bytes, *, seconds: float = SECONDS, megabytes: float = MEGABYTES) -> None:
    """Raises Broken."""
    before = peak()
    try:
        with _limited(seconds):
            target.run(data)
    except target.declared as refused:
        # A refusal is read by people: it has a text, and does not repeat a megabyte of input.
        if not 1 <= len(str(refused)) <= 200_000:
            raise Broken(f"{target.name}: {type(refused).__name__} with {len(str(refused))} characters") from refused
    except Hang as hang:
        raise Broken(f"{target.name}: {hang}") from hang
    except Broken:
        raise
    except Exception as problem:
        raise Broken(f"{target.name}: {type(problem).__name__} was never declared: {problem!r:.300}") from problem
    grown = peak() - before
    if grown > megabytes:
        raise Broken(f"{target.name}: {len(data)} bytes of input made the process grow by {grown:.0f} MB")


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise Hang(f"more than {seconds:g} s of processor time")

    old = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, old)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
