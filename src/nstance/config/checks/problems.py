"""Collects the problems of a configuration and gives each its line, its path in the file and a hint.

Checks use paths of the translated document. `Origins` maps them back where the file has an older spelling.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nstance.config import jsonc
from nstance.config.errors import MAX_PROBLEMS, ConfigError, Problem
from nstance.config.jsonc import Path

_MAX_HINTS = 50  # problems with a hint, because the search for similar words is slow
_MAX_CANDIDATES = 500

Origins = Mapping[Path, Path]
_NO_ORIGINS: Origins = {}


@dataclass(frozen=True, slots=True)
class _Found:
    path: Path
    message: str
    word: str = ""  # found where one of the candidates was expected
    candidates: Collection[str] = ()
    at_key: bool = False  # the key is wrong, not its value
    character: int = 0  # of the string at this path


@dataclass(slots=True)
class ProblemCollector:
    """The problems found so far. The same message for the same path is kept once."""

    found: dict[tuple[Path, str], _Found] = field(default_factory=dict)

    def add(
        self,
        path: Path,
        message: str,
        *,
        word: str = "",
        candidates: Collection[str] = (),
        at_key: bool = False,
        character: int = 0,
    ) -> None:
        self.found.setdefault((path, message), _Found(path, message, word, candidates, at_key, character))

    def locate(
        self,
        document: jsonc.Document | None,
        *,
        source: str,
        origins: Origins = _NO_ORIGINS,
        faults: Sequence[jsonc.Fault] = (),
    ) -> tuple[Problem, ...]:
        """All problems in the order of the text, together with the `faults` that reading the text found."""
        unread = {path for path, _, _ in faults}  # their values are placeholders, so checks of them do not count
        written = [(found, origin(found.path, origins)) for found in self.found.values()]
        written = [(found, path) for found, path in written if path not in unread]
        # A missing key has no place of its own, but its parents do.
        wanted = {path[:length] for _, path in written for length in range(len(path) + 1)}
        places = {} if document is None else document.locate(wanted)
        rows = [(*_position(document, places, found, path), found, path) for found, path in written]
        if document is not None:
            rows += [(*document.position(at), _Found(path, message), path) for path, at, message in faults]
        rows.sort(key=lambda row: row[:2])
        problems = [
            Problem(
                jsonc.show(path) or source,
                line,
                column,
                found.message,
                _hint(found, origins) if number < _MAX_HINTS else "",
            )
            for number, (line, column, found, path) in enumerate(rows[:MAX_PROBLEMS])
        ]
        if len(rows) > MAX_PROBLEMS:
            problems.append(Problem(source, 0, 0, f"and {len(rows) - MAX_PROBLEMS:,} more problems"))
        return tuple(problems)

    def raise_any(
        self,
        document: jsonc.Document | None,
        *,
        source: str,
        origins: Origins = _NO_ORIGINS,
        faults: Sequence[jsonc.Fault] = (),
    ) -> None:
        if self.found or faults:
            raise ConfigError(self.locate(document, source=source, origins=origins, faults=faults))


def origin(path: Path, origins: Origins) -> Path:
    """The path in the file."""
    for length in range(len(path), 0, -1):
        if (start := origins.get(path[:length])) is not None:
            return start + path[length:]
    return path


def closest(word: str, candidates: Iterable[str]) -> str:
    """The candidate that was probably meant, or an empty string."""
    some = [candidate for _, candidate in zip(range(_MAX_CANDIDATES), candidates, strict=False)]
    folded = {candidate.lower(): candidate for candidate in some}
    if word.lower() in folded:
        return folded[word.lower()]
    import difflib  # only for mistakes

    return next(iter(difflib.get_close_matches(word, some, n=1)), "")


def _hint(found: _Found, origins: Origins) -> str:
    if not found.at_key:
        return closest(found.word, found.candidates)
    parent = found.path[:-1]
    return closest(found.word, [str(origin((*parent, key), origins)[-1]) for key in found.candidates])


def _position(
    document: jsonc.Document | None, places: Mapping[Path, jsonc.Place], found: _Found, path: Path
) -> tuple[int, int]:
    if document is None:
        return 0, 0
    exists = path in places
    while path not in places:
        path = path[:-1]
    place = places[path]
    if exists and found.at_key and place.key is not None:
        return document.position(place.key)
    if exists and found.character:
        return document.position(document.offset_in_string(place.value, found.character))
    return document.position(place.value)
