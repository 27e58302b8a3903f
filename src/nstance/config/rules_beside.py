"""The rules of a block whose other keys are wrong.

The validator asks for a rule between keys (this one shorter than that one) only when every key of the block is right. So
the document is asked once more without what is wrong with it. The trap: a default steps in for what was left out, and
nobody wrote that; a rule counts only if it speaks of what is there.
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from nstance.config import messages
from nstance.config.errors import MOST
from nstance.config.findings import Findings
from nstance.config.jsonc import Path

_WORD = re.compile(r"\w+")


def collect(error: ValidationError, model: type[BaseModel], value: Mapping[str, Any], findings: Findings) -> None:
    """Adds what the validator could not come to because of `error`."""
    if error.error_count() > MOST:
        return
    rest: dict[str, Any] = _copy(value)
    unknown: set[Path] = set()  # blocks with keys that do not exist
    faulty: dict[Path, set[str]] = {}  # blocks with keys that are wrong, and these keys
    for each in error.errors(include_url=False):
        if each["type"] != "missing" and not _is_rule(each):
            path = messages.path_of(each)
            block, key = _remove(rest, path)
            if each["type"] == "extra_forbidden" and (*block, key) == path:
                unknown.add(block)
            else:
                faulty.setdefault(block, set()).add(key)
    try:
        model.model_validate(rest)
    except ValidationError as again:
        for each in again.errors(include_url=False):
            block = messages.path_of(each)
            if _is_rule(each) and (block in unknown or block in faulty):
                sentence = each["ctx"]["sentence"]
                words = set(_WORD.findall(sentence))
                if block not in faulty or (words & each["input"].keys() and not words & faulty[block]):
                    findings.add(block, sentence)


def _is_rule(each: Any) -> bool:
    return each["type"] == "nstance" and isinstance(each["input"], Mapping)


def _copy(value: Any) -> Any:
    return {key: _copy(each) for key, each in value.items()} if isinstance(value, Mapping) else value


def _remove(document: dict[str, Any], path: Path) -> tuple[Path, str]:
    """An element goes with its whole list: the others would get new numbers. Says which key of which block went."""
    block = document
    for depth, part in enumerate(path):
        inner = block.get(str(part))
        if depth == len(path) - 1 or not isinstance(inner, dict):
            block.pop(str(part), None)
            return path[:depth], str(part)
        block = inner
    return (), ""
