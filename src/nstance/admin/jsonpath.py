"""The part of kubectl's JSONPath that people use, for `-o jsonpath=...`.

    {.items[*].instance_id}        every ID
    {[0].group}                    of the first; `.items` may be left out
    {[?(@.state=="running")].ipv4} of those that run
    {..message}                    every message, however deep
    {range [*]}{.group}{"\\t"}{.size}{"\\n"}{end}

Text outside braces is copied. Several values are separated by a space. A missing key is an error that names a near one:
an empty line would look like an answer.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterator, Sequence

ITEMS = "items"

_PARTS = re.compile(r"""\{((?:[^{}"']|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')*)\}""")
_STEP = re.compile(
    r"""\.\.(?P<deep>[\w-]+)
    | \.?\[\?\(\s*@(?P<where>[\w.-]*)\s*(?:(?P<sign>==|!=|<=|>=|<|>)\s*(?P<than>"[^"]*"|'[^']*'|[\w.+-]+)\s*)?\)\]
    | \.?\[(?P<start>-?\d*):(?P<stop>-?\d*)\]
    | \.?\[(?P<index>-?\d+|\*)\]
    | \.?\[(?P<quoted>"[^"]*"|'[^']*')\]
    | \.(?P<key>[\w-]+|\*)""",
    re.VERBOSE,
)
_COMPARE: dict[str, Callable[..., bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
}
_NOTHING = object()

Node = tuple[str, object]  # ("text", str), ("path", steps) or ("range", (steps, nodes))
Step = re.Match[str]


class JsonPathError(ValueError):
    """The template is wrong, or what it names does not exist; the message is for the person who wrote it."""


class Template:
    def __init__(self, text: str) -> None:
        """Raises JsonPathError."""
        tokens = list(_tokens(text if "{" in text else f"{{{text}}}"))  # as kubectl, without braces a path
        self._nodes, rest = _parse(tokens, is_inside=False)
        assert not rest

    def render(self, root: object) -> str:
        """Raises JsonPathError."""
        return _render(self._nodes, root)


def _tokens(text: str) -> Iterator[Node]:
    position = 0
    for found in _PARTS.finditer(text):
        yield from _literal(text[position : found.start()])
        yield "expression", found[1].strip()
        position = found.end()
    yield from _literal(text[position:])


def _literal(text: str) -> Iterator[Node]:
    if "{" in text or "}" in text:
        raise JsonPathError(f"expected braces in pairs, as in {{.group}}, found {text[:64]!r}")
    if text:
        yield "text", text


def _parse(tokens: Sequence[Node], *, is_inside: bool) -> tuple[list[Node], Sequence[Node]]:
    """The nodes up to the end of a range, and the tokens after it."""
    nodes: list[Node] = []
    while tokens:
        (kind, value), tokens = tokens[0], tokens[1:]
        text = str(value)
        if kind == "text":
            nodes.append((kind, text))
        elif text[:1] in ('"', "'"):
            nodes.append(("text", _unquote(text)))
        elif text == "end":
            if not is_inside:
                raise JsonPathError("expected {range ...} before {end}")
            return nodes, tokens
        elif text.startswith("range "):
            body, tokens = _parse(tokens, is_inside=True)
            nodes.append(("range", (_steps(text.removeprefix("range ").strip()), body)))
        else:
            nodes.append(("path", _steps(text)))
    if is_inside:
        raise JsonPathError("expected {end} after {range ...}")
    return nodes, ()


def _unquote(text: str) -> str:
    inner = text[1:-1]
    try:
        return str(json.loads(f'"{inner}"' if text[0] == '"' else '"' + inner.replace('"', '\\"') + '"'))
    except ValueError as error:
        raise JsonPathError(f"expected a quoted text such as {chr(34)}\\n{chr(34)}, found {text[:64]}") from error


def _steps(text: str) -> list[Step]:
    rest = text.removeprefix("$").removeprefix("@")
    if rest == ".":
        rest = ""
    elif rest and rest[0] not in ".[":
        rest = f".{rest}"
    found = []
    while rest:
        step = _STEP.match(rest)
        if step is None:
            raise JsonPathError(f"expected a path such as .group, [0], [*] or ..name, found {rest[:64]!r}")
        found.append(step)
        rest = rest[step.end() :]
    return found


def _render(nodes: Sequence[Node], root: object) -> str:
    parts: list[str] = []
    for kind, value in nodes:
        if kind == "text":
            parts.append(str(value))
        elif kind == "path":
            assert isinstance(value, list)
            parts.append(" ".join(map(_text, _find(root, value))))
        else:
            assert isinstance(value, tuple)
            parts += [_render(value[1], each) for each in _find(root, value[0])]
    return "".join(parts)


def _find(root: object, steps: Sequence[Step]) -> list[object]:
    found = [root]
    for number, step in enumerate(steps):
        is_alias = number == 0 and isinstance(root, list) and step["key"] == ITEMS
        found = found if is_alias else [value for each in found for value in _take(each, step)]
    return found


def _take(value: object, step: Step) -> Iterator[object]:
    if step["deep"]:
        yield from _descend(value, step["deep"])
    elif step["where"] is not None:
        yield from (each for each in _children(value, step) if _matches(each, step))
    elif step["start"] is not None:
        stop = int(step["stop"]) if step["stop"] else None
        yield from _list(value, step)[int(step["start"] or 0) : stop]
    elif "*" in (step["index"], step["key"]):
        yield from _children(value, step)
    elif step["index"]:
        elements = _list(value, step)
        with_index = dict(enumerate(elements)) | {index - len(elements): each for index, each in enumerate(elements)}
        if int(step["index"]) not in with_index:
            raise JsonPathError(f"there is no {step[0]}: the list has {len(elements)} elements")
        yield with_index[int(step["index"])]
    else:
        yield _lookup(value, step["key"] or step["quoted"][1:-1])


def _lookup(value: object, key: str) -> object:
    if not isinstance(value, dict):
        found = f"a list; [*].{key} takes all" if isinstance(value, list) else repr(value)[:64]
        raise JsonPathError(f"expected an object with {key}, found {found}")
    if key not in value:
        near = difflib.get_close_matches(key, value, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(value)}"
        raise JsonPathError(f"there is no key {key} ({hint})")
    return value[key]


def _children(value: object, step: Step) -> list[object]:
    return list(value.values()) if isinstance(value, dict) else _list(value, step)


def _list(value: object, step: Step) -> list[object]:
    if not isinstance(value, list):
        raise JsonPathError(f"expected a list for {step[0]}, found {type(value).__name__}")
    return value


def _descend(value: object, key: str) -> Iterator[object]:
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        for each in value.values():
            yield from _descend(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _descend(each, key)


def _matches(value: object, step: Step) -> bool:
    current: object = value
    for key in filter(None, step["where"].split(".")):
        current = current.get(key, _NOTHING) if isinstance(current, dict) else _NOTHING
    if step["sign"] is None:
        return current is not _NOTHING and current is not None and current is not False
    than = step["than"]
    try:
        wanted: object = than[1:-1] if than[0] in "\"'" else json.loads(than)
    except ValueError:
        raise JsonPathError(f"expected a number, true, false, null or a quoted text, found {than[:64]}") from None
    try:
        return current is not _NOTHING and _COMPARE[step["sign"]](current, wanted)
    except TypeError:
        return False


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
