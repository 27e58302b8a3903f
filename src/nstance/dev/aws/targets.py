"""Targets with a life cycle: only VMs that exist, initial before healthy, draining before gone."""

from collections.abc import Mapping

from nstance.clock import Clock
from nstance.dev.aws import xml
from nstance.dev.aws.books import Books, Params, Target
from nstance.dev.aws.instances import Instances
from nstance.dev.aws.moto import Moto, Refusal
from nstance.dev.aws.rules import Rules

_LIST = "TargetHealthDescriptions"


class Targets:
    def __init__(self, moto: Moto, clock: Clock, rules: Rules, books: Books, instances: Instances) -> None:
        self._moto, self._clock, self.rules, self.books = moto, clock, rules, books
        self._instances = instances

    async def register(self, params: Params, body: bytes, headers: Mapping[str, str]) -> bytes:
        ids = _targets(params)
        for id in ids:
            if not await self._instances.existing(id):
                raise Refusal("InvalidTarget", f"The following targets are not in a running state: '{id}'")
        answer = await self._moto.call(body, headers)
        for id in ids:
            self.books.targets[params["TargetGroupArn"], id] = Target(self._clock.monotonic())
        return answer

    async def deregister(self, params: Params, body: bytes, headers: Mapping[str, str]) -> bytes:
        if not self.rules.deregistration_seconds:
            for id in _targets(params):
                self.books.targets.pop((params["TargetGroupArn"], id), None)
            return await self._moto.call(body, headers)
        for id in _targets(params):
            target = self.books.targets.get((params["TargetGroupArn"], id))
            if target is not None and target.deregistered is None:
                target.deregistered = self._clock.monotonic()
        return b"<DeregisterTargetsResponse><DeregisterTargetsResult/></DeregisterTargetsResponse>"

    async def health(self, params: Params, body: bytes, headers: Mapping[str, str]) -> bytes:
        root = xml.parse(await self._moto.call(body, headers))
        now, group = self._clock.monotonic(), params["TargetGroupArn"]
        gone = set()
        for entry in xml.all_entries(root, _LIST):
            target = self.books.targets.get((group, xml.text(entry, "Target", "Id")))
            if target is None:
                continue
            if target.deregistered is not None:
                if now >= target.deregistered + self.rules.deregistration_seconds:
                    gone.add(xml.text(entry, "Target", "Id"))
                xml.set_text(entry, "draining", "TargetHealth", "State")
            elif now < target.registered + self.rules.healthy_after:
                xml.set_text(entry, "initial", "TargetHealth", "State")
        xml.keep(root, _LIST, lambda each: xml.text(each, "Target", "Id") not in gone)
        return xml.write(root)


def _targets(params: Params) -> list[str]:
    return [value for name, value in params.items() if name.endswith(".Id")]
