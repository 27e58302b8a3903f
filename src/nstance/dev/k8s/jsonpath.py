"""The part of JSONPath that printer columns use: fields, indexes, `[*]`, and filters by equality."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

_STEP = re.compile(
    r"\.(?P<field>(?:[A-Za-z0-9_$-]|\\.)+)"
    r"|\[\s*'(?P<quoted>[^']*)'\s*\]"
    r"|\[\s*(?P<index>-?\d+)\s*\]"
    r"|(?P<all>\[\*\]|\.\*)"
    r"|\[\?\(\s*@(?P<key>(?:\.[A-Za-z0-9_-]+)+)\s*==\s*(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<bare>[^)\s]+))\s*\)\]"
)


@lru_cache(1024)
def _steps(path: str) -> tuple[dict[str, str], ...] | None:
    path = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    if path and path[0] not in ".[":
        path = f".{path}"
    found, position = [], 0
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            return None
        found.append({key: value for key, value in step.groupdict().items() if value is not None})
        position = step.end()
    return tuple(found)


def find(value: Any, path: str) -> list[Any]:
    """All values at a path; none if the path is not supported."""
    steps = _steps(path)
    if steps is None:
        return []
    found = [value]
    for step in steps:
        found = [inner for each in found for inner in _inner(each, step)]
    return found


def _inner(value: Any, step: dict[str, str]) -> Iterator[Any]:
    if "all" in step:
        yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    elif "index" in step:
        if isinstance(value, list) and -len(value) <= int(step["index"]) < len(value):
            yield value[int(step["index"])]
    elif "key" in step:
        wanted = next(step[name] for name in ("double", "single", "bare") if name in step)
        for each in value if isinstance(value, list) else ():
            for found in find(each, step["key"]):
                if (str(found).lower() if isinstance(found, bool) else str(found)) == wanted:
                    yield each
    else:
        name = step["quoted"] if "quoted" in step else re.sub(r"\\(.)", r"\1", step["field"])
        if isinstance(value, dict) and name in value:
            yield value[name]
