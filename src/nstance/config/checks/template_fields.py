"""Checks templates in strings: their syntax, and that the fields they use exist. They are not rendered here."""

from collections.abc import Iterator, Mapping

from nstance import gotemplate
from nstance.config.checks.problems import ProblemCollector
from nstance.config.errors import quoted
from nstance.config.jsonc import Path

# The fields that a template can use. None: any key.
FIELDS: Mapping[str, frozenset[str] | None] = {
    "Cluster": frozenset({"ID", "CACert"}),
    "Server": frozenset({"Shard", "RegistrationAddr", "AgentAddr", "OperatorAddr"}),
    "Provider": frozenset({"Kind", "Region", "Zone"}),
    "Instance": frozenset({"ID", "Kind", "Arch", "Type", "Hostname", "FQDN", "IP4", "IP6"}),
    "Vars": None,
    "Image": None,
}
FOR_USERDATA: Mapping[str, frozenset[str] | None] = {
    **FIELDS,
    "Nonce": frozenset(),
    "Agent": frozenset({"URL", "SHA256", "Version"}),
}
FOR_CA: Mapping[str, frozenset[str] | None] = {"Cluster": frozenset({"ID"})}


def strings(path: Path, value: object) -> Iterator[tuple[Path, str]]:
    """All strings of a JSON value. Keys are not templates."""
    match value:
        case str():
            yield path, value
        case dict():
            for key, each in value.items():
                yield from strings((*path, key), each)
        case list():
            for index, each in enumerate(value):
                yield from strings((*path, index), each)
        case _:
            pass


def check(
    path: Path,
    text: str,
    problems: ProblemCollector,
    *,
    fields: Mapping[str, frozenset[str] | None] = FIELDS,
    images: Mapping[str, object] | None = None,
) -> None:
    """`images` are the configured ones; None: image names are not checked."""
    if "{{" not in text:
        return
    try:
        uses = gotemplate.parse(text).uses()
    except gotemplate.TemplateError as error:
        place = f"line {error.line} of the template: " if error.line > 1 else ""
        problems.add(path, f"{place}{error.message}", character=_index(text, error.line, error.column))
        return
    seen: set[tuple[str, ...]] = set()
    for use in uses:
        if not use.path or use.path in seen:
            continue
        seen.add(use.path)
        root, *rest = use.path
        character = _index(text, use.line, use.column)
        if root not in fields:
            hint = f"; .{root} is available in userdata only" if root in ("Nonce", "Agent") else ""
            message = f"expected a field that is available in this template, found {quoted('.' + root)}{hint}"
            problems.add(path, message, word=root, candidates=fields, character=character)
            continue
        known = fields[root]
        if known is not None and rest and rest[0] not in known:
            message = f"expected a field of .{root}, found {quoted('.'.join(('', *use.path)))}"
            problems.add(path, message, word=rest[0], candidates=sorted(known), character=character)
        elif root == "Image" and rest and images is not None and rest[0] not in images:
            message = f"expected the name of an image, found {quoted(rest[0])}"
            problems.add(path, message, word=rest[0], candidates=images, character=character)


def _index(text: str, line: int, column: int) -> int:
    """The offset of a line and column in a text."""
    start = 0
    for _ in range(line - 1):
        start = text.index("\n", start) + 1
    return min(start + column - 1, max(0, len(text) - 1))
