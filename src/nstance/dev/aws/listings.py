"""Listings of EC2's instances without asking moto about each of them each time, which takes it 2 ms an instance.

Only for tests in which all changes go through the stand-in: those that are made past it are not seen.
"""

import asyncio
import copy
from collections.abc import Mapping

from nstance.dev.aws import xml
from nstance.dev.aws.moto import Moto

_TAG = "tag:"


class Listings:
    def __init__(self, moto: Moto) -> None:
        self._moto = moto
        self._root: xml.Element | None = None  # the answer to the first listing
        self._known: dict[str, tuple[dict[str, str], xml.Element]] = {}  # tags and reservation by instance
        self._changed: set[str] = set()
        self._turn = asyncio.Lock()

    def on_change(self, instance: str) -> None:
        """It was launched, or has ended."""
        self._changed.add(instance)

    async def answer(self, params: Mapping[str, str]) -> xml.Element:
        """As moto would answer to this DescribeInstances with filters of tags. Raises Refusal."""
        async with self._turn:
            # What changes while moto answers is asked about again the next time.
            changed, self._changed = self._changed, set()
            try:
                if self._root is None:
                    self._root = self._remember(await self._moto.describe_instances({}))
                elif changed:
                    asked = {f"InstanceId.{number}": id for number, id in enumerate(sorted(changed), 1)}
                    self._remember(await self._moto.describe_instances(asked))
            except BaseException:
                self._changed |= changed
                raise
            root = copy.deepcopy(self._root)
        wanted = _filters(params)
        found = [each for tags, each in self._known.values() if wanted.items() <= tags.items()]
        xml.find(root, "reservationSet")[0].extend(copy.deepcopy(found))
        return root

    def _remember(self, root: xml.Element) -> xml.Element:
        """The answer without its reservations, each of which has one instance."""
        for each in xml.all_entries(root, "reservationSet"):
            instance = xml.all_entries(each, "instancesSet")[0]
            self._known[xml.text(instance, "instanceId")] = xml.tags(instance), each
        xml.keep(root, "reservationSet", lambda each: False)
        return root


def _filters(params: Mapping[str, str]) -> dict[str, str]:
    names = {name: value for name, value in params.items() if name.endswith(".Name") and value.startswith(_TAG)}
    return {value.removeprefix(_TAG): params[f"{name.removesuffix('Name')}Value.1"] for name, value in names.items()}
