"""Keeps words out that the glossary replaces, and log messages in the form that CONTRIBUTING.md describes.

Looks at identifiers, comments, docstrings and log calls of tracked Python files, and at the text of docs. A line that
needs such a word says so with `language: ok`.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

WORDS = re.compile(
    r"\b(reigns?|reigning|in force|newcomers?|noteworthy|wish(?:es|ed)?|unwelcome|makes? trouble|put in place|anew|"
    r"whoever|for haste|is told|nobody expected|of no use)\b",
    re.IGNORECASE,
)
IDENTIFIERS = re.compile(
    r"(?:^|_)(reign|newcomers?|noteworthy|wish(?:es)?|told|said|heard|came|went|oddity|unwelcome)(?:_|$)", re.IGNORECASE
)
# A message states a fact or a failure; it does not begin like a story.
STORY = re.compile(r"^(an?|the|this|that|it|who|what|how|nobody|somebody|everybody|there) ", re.IGNORECASE)
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
ALLOWED = "language: ok"
SKIPPED = ("src/nstance/v1/", "docs/glossary.md", "scripts/check_language.py", "CHANGELOG.md")


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], capture_output=True, text=True, check=True).stdout
    found = 0
    for name in listed.splitlines():
        if not name.startswith(SKIPPED) and Path(name).is_file():
            for line, message in sorted(set(_problems(Path(name)))):
                found += 1
                print(f"{name}:{line}: {message}")  # noqa: T201
    return 1 if found else 0


def _problems(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if ALLOWED not in line and (match := WORDS.search(line)):
            yield number, f"{match.group(0)!r} is a replaced word, see docs/glossary.md"
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(text)):
        line = getattr(node, "lineno", 0)
        if line and ALLOWED in lines[line - 1]:
            continue
        for name in _names(node):
            if IDENTIFIERS.search(name):
                yield line, f"the name {name!r} uses a replaced word, see docs/glossary.md"
        if (message := _logged(node)) is not None:
            if STORY.match(message):
                yield line, f"log message {message!r}: begin with the subject or with 'failed to'"
            elif message.endswith("."):
                yield line, f"log message {message!r}: no full stop at the end"


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.arg():
            yield node.arg
        case ast.Name(ctx=ast.Store()):
            yield node.id
        case ast.Attribute(ctx=ast.Store()):
            yield node.attr


def _logged(node: ast.AST) -> str | None:
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="log" | "logger"), attr=level),
            args=[ast.Constant(value=str(text)), *_],
        ) if level in LEVELS:
            return text
        case _:
            return None


if __name__ == "__main__":
    sys.exit(main())
