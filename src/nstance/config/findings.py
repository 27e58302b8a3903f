"""From what a check found to what a person reads: the place in the text, the path as it was written, the likely word.

Checks speak in paths of the validated document. Where an older spelling was translated, `Origins` leads back to what
the file really says.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nstance.config import jsonc
from nstance.config.errors import MOST, ConfigError, Problem
from nstance.config.jsonc import Path

_MOST_HINTS = 50  # problems that get a hint: a search for near matches is slow
_MOST_CANDIDATES = 500

Origins = Mapping[Path, Path]


@dataclass(frozen=True, slots=True)
class Finding:
    path: Path
    message: str
    word: str = ""  # what was written where one of the candidates was expected
    candidates: Collection[str] = ()
    at_key: bool = False  # the key is wrong, not its value
    character: int = 0  # of the string at this path


@dataclass(slots=True)
class Findings:
    """Collects. The same complaint about the same place is kept once."""

    found: dict[tuple[Path, str], Finding] = field(default_factory=dict)

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
        self.found.setdefault((path, message), Finding(path, message, word, candidates, at_key, character))

    def problems(
        self, document: jsonc.Document | None, *, source: str, origins: Origins, faults: Sequence[jsonc.Fault] = ()
    ) -> tuple[Problem, ...]:
        """All of them in the order of the text, and `faults` of the text itself among them."""
        unread = {path for path, _, _ in faults}  # what was read instead is nobody's fault
        written = [(finding, origin(finding.path, origins)) for finding in self.found.values()]
        written = [(finding, path) for finding, path in written if path not in unread]
        # A missing key has no place of its own; its parents have.
        wanted = {path[:length] for _, path in written for length in range(len(path) + 1)}
        places = {} if document is None else document.locate(wanted)
        rows = [(*_position(document, places, finding, path), finding, path) for finding, path in written]
        if document is not None:
            rows += [(*document.position(at), Finding(path, says), path) for path, at, says in faults]
        rows.sort(key=lambda row: row[:2])
        problems = [
            Problem(
                jsonc.show(path) or source,
                line,
                column,
                finding.message,
                _near(finding, origins) if number < _MOST_HINTS else "",
            )
            for number, (line, column, finding, path) in enumerate(rows[:MOST])
        ]
        if len(rows) > MOST:
            problems.append(Problem(source, 0, 0, f"and {len(rows) - MOST:,} problems more"))
        return tuple(problems)

    def raise_any(
        self, document: jsonc.Document | None, *, source: str, origins: Origins, faults: Sequence[jsonc.Fault] = ()
    ) -> None:
        if self.found or faults:
            raise ConfigError(self.problems(document, source=source, origins=origins, faults=faults))


def origin(path: Path, origins: Origins) -> Path:
    """The path as the file has it."""
    for length in range(len(path), 0, -1):
        if (start := origins.get(path[:length])) is not None:
            return start + path[length:]
    return path


def near(word: str, candidates: Iterable[str]) -> str:
    """The candidate that was probably meant, or nothing."""
    some = [candidate for _, candidate in zip(range(_MOST_CANDIDATES), candidates, strict=False)]
    folded = {candidate.lower(): candidate for candidate in some}
    if word.lower() in folded:
        return folded[word.lower()]
    return next(iter(difflib.get_close_matches(word, some, n=1)), "")


def _near(finding: Finding, origins: Origins) -> str:
    if not finding.at_key:
        return near(finding.word, finding.candidates)
    parent = finding.path[:-1]
    return near(finding.word, [str(origin((*parent, key), origins)[-1]) for key in finding.candidates])


def _position(
    document: jsonc.Document | None, places: Mapping[Path, jsonc.Place], finding: Finding, path: Path
) -> tuple[int, int]:
    if document is None:
        return 0, 0
    place = places.get(path)
    if place is None:
        while place is None:
            path = path[:-1]
            place = places.get(path)
        return document.position(place.value)
    if finding.at_key and place.key is not None:
        return document.position(place.key)
    if finding.character:
        return document.position(document.inside(place.value, finding.character))
    return document.position(place.value)
