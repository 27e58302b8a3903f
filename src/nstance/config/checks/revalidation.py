"""Reports rules between the keys of a block that has other faults as well.

The validator checks a rule such as "this one shorter than that one" only when every key of the block is valid. So the
document is validated a second time without its faults. The trap: a default then replaces what was removed, so a rule
counts only if it names keys that the file really has.
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from nstance.config.checks import validation_errors
from nstance.config.checks.problems import ProblemCollector
from nstance.config.errors import MAX_PROBLEMS
from nstance.config.jsonc import Path

_WORD = re.compile(r"\w+")


def collect(
    error: ValidationError, model: type[BaseModel], value: Mapping[str, Any], problems: ProblemCollector
) -> None:
    """Adds the problems that `error` kept the validator from finding."""
    if error.error_count() > MAX_PROBLEMS:
        return
    remaining: dict[str, Any] = _copy(value)
    unknown: set[Path] = set()  # blocks with unknown keys
    invalid_keys: dict[Path, set[str]] = {}  # block: its invalid keys
    for each in error.errors(include_url=False):
        if each["type"] != "missing" and not _is_rule(each):
            path = validation_errors.path_of(each)
            block, key = _remove(remaining, path)
            if each["type"] == "extra_forbidden" and (*block, key) == path:
                unknown.add(block)
            else:
                invalid_keys.setdefault(block, set()).add(key)
    try:
        model.model_validate(remaining)
    except ValidationError as second:
        for each in second.errors(include_url=False):
            block = validation_errors.path_of(each)
            if _is_rule(each) and (block in unknown or block in invalid_keys):
                sentence = each["ctx"]["sentence"]
                words = set(_WORD.findall(sentence))
                if block not in invalid_keys or (words & each["input"].keys() and not words & invalid_keys[block]):
                    problems.add(block, sentence)


def _is_rule(each: Any) -> bool:
    return each["type"] == "nstance" and isinstance(each["input"], Mapping)


def _copy(value: Any) -> Any:
    return {key: _copy(each) for key, each in value.items()} if isinstance(value, Mapping) else value


def _remove(document: dict[str, Any], path: Path) -> tuple[Path, str]:
    """Removes a value and returns the block and key that it was in. A list goes as a whole: its indexes would shift."""
    block = document
    for depth, part in enumerate(path):
        inner = block.get(str(part))
        if depth == len(path) - 1 or not isinstance(inner, dict):
            block.pop(str(part), None)
            return path[:depth], str(part)
        block = inner
    return (), ""
