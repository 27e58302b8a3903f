"""Loads a module of the product with one change in its source. It must happen before anything imports that module."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import Any

from sim.mutants.catalogue import Mutant


class NotThere(Exception):
    """The source no longer holds what the mutant is to change, or holds it more than once."""


def mutated(mutant: Mutant) -> str:
    spec = importlib.util.find_spec(mutant.module)
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        source = file.read()
    if source.count(mutant.old) != 1:
        raise NotThere(f"{mutant.name}: expected once in {mutant.module}, found {source.count(mutant.old)} times")
    return source.replace(mutant.old, mutant.new)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, mutant: Mutant, path: str, source: str) -> None:
        super().__init__(mutant.module, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        spec = importlib.util.find_spec(mutant.module)
        assert spec is not None
        assert spec.origin is not None
        self._mutant = mutant
        self._loader = _Loader(mutant, spec.origin, mutated(mutant))

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname != self._mutant.module:
            return None
        return importlib.util.spec_from_file_location(fullname, self._loader.path, loader=self._loader)


def install(mutant: Mutant) -> None:
    if mutant.module in sys.modules:
        raise RuntimeError(f"{mutant.module} is already imported: a mutant needs a fresh interpreter")
    sys.meta_path.insert(0, _Finder(mutant))
