"""Filter expressions of list calls, as far as Nstance writes them: equalities, or one field with a regular expression.

Google refuses regular expressions on several fields, and the two kinds in one filter. It wants each of several expressions
in parentheses.
"""

import re
from typing import Any

_EQUALS = re.compile(r'([A-Za-z.-]+)\s*=\s*"([^"]*)"')
_MATCHES = re.compile(r'([A-Za-z.]+) eq "((?:[^"\\]|\\.)*)"')


def is_valid(wanted: str) -> bool:
    rest = _EQUALS.sub("=", wanted).replace("(=)", "")
    return rest.strip() in ("", "=") or _MATCHES.fullmatch(wanted) is not None


def matches(entry: Any, wanted: str) -> bool:
    pairs = [(name, re.escape(value)) for name, value in _EQUALS.findall(wanted)] + _MATCHES.findall(wanted)
    return all(re.fullmatch(pattern, str(_at(entry, name))) for name, pattern in pairs)


def _at(entry: Any, name: str) -> Any:
    for part in name.split(".", 1) if name.startswith("labels.") else [name]:
        entry = entry.get(part, "") if isinstance(entry, dict) else ""
    return entry
