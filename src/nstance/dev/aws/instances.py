"""EC2's instances as strict as EC2 is: idempotency by ClientToken, capacity, launch budget, pages, lag, reclaimed spot VMs."""

import base64
import functools
import math
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping

from nstance.clock import Clock
from nstance.dev.aws import xml
from nstance.dev.aws.books import Books, Launch, Params
from nstance.dev.aws.listings import Listings
from nstance.dev.aws.moto import Moto, Refusal, signed
from nstance.dev.aws.rules import Offer, Rules, offer_of

MAX_TOKEN_CHARACTERS = 64
MAX_USERDATA_BASE64 = math.ceil(16 * 1024 / 3) * 4
_ID = re.compile(r"i-([0-9a-f]{8}|[0-9a-f]{17})")
_SPOT_ENDED = "Server.SpotInstanceTermination"
_ID_TAG = "nstance:instance-id"
_ID_TAG_FILTER = f"tag:{_ID_TAG}"
_GONE = ("terminated", "shutting-down")

OnLaunch = Callable[[str, Params], None]
OnEnd = Callable[[str], None]


class Instances:
    def __init__(self, moto: Moto, clock: Clock, rules: Rules, books: Books) -> None:
        self._moto, self._clock, self.rules, self.books = moto, clock, rules, books
        self._listings = Listings(moto)
        self.on_launch: OnLaunch = lambda instance, params: None
        self.on_end: OnEnd = lambda instance: None

    async def existing(self, *ids: str) -> dict[str, str]:
        """moto's own books, past all faults: tag `nstance:instance-id` (or nothing) by EC2 ID of all that still exist."""
        only = {f"InstanceId.{number}": id for number, id in enumerate(ids, 1)}
        try:
            root = await self._moto.describe_instances(only)
        except Refusal:  # none of these IDs
            return {}
        return {
            xml.text(each, "instanceId"): xml.tags(each).get(_ID_TAG, "")
            for each in described(root)
            if xml.text(each, "instanceState", "name") not in _GONE
        }

    async def interrupt(self, instance: str) -> None:
        """A spot instance is reclaimed now."""
        self.books.interrupted[instance] = self._clock.monotonic()
        await self._moto.ec2("TerminateInstances", {"InstanceId.1": instance})
        self._ended([instance])

    # ---- calls

    async def run(self, params: Params, body: bytes, headers: Mapping[str, str]) -> bytes:
        token, offer = params.get("ClientToken", ""), offer_of(params)
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise Refusal("InvalidParameterValue", f"ClientToken is longer than {MAX_TOKEN_CHARACTERS} characters")
        if len(params.get("UserData", "")) > MAX_USERDATA_BASE64:
            raise Refusal("InvalidParameterValue", "User data is limited to 16384 bytes")
        _check_interface_tags(params)
        await self._check_profile(params)
        if not token:
            return await self._launch(params, body, headers, offer)
        async with self.books.launching[token]:
            if (known := self.books.launches.get(token)) is not None:
                return await self._repeat(known, params)
            return await self._launch(params, body, headers, offer)

    async def _check_profile(self, params: Params) -> None:
        """Also in a dry run. moto looks at it only in a real one, and has another word for it."""
        arn = params.get("IamInstanceProfile.Arn", "")
        name = params.get("IamInstanceProfile.Name") or arn.rpartition("/")[2]
        if not name:
            return
        query = {"Action": "GetInstanceProfile", "Version": "2010-05-08", "InstanceProfileName": name}
        try:
            await self._moto.call(urllib.parse.urlencode(query).encode(), signed("iam", self._moto.region))
        except Refusal:
            message = f"Value ({name}) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile"
            raise Refusal("InvalidParameterValue", message) from None

    async def _launch(self, params: Params, body: bytes, headers: Mapping[str, str], offer: Offer) -> bytes:
        self._spend()
        if not self.rules.take(offer):
            kind = offer.instance_type or "instance"
            message = f"We currently do not have sufficient {kind} capacity in the Availability Zone you requested."
            raise Refusal("InsufficientInstanceCapacity", message, 500)
        try:
            answer = await self._moto.call(body, headers)
        except Refusal:
            self.rules.give_back(offer)
            raise
        instance = xml.text(described(xml.parse(answer))[0], "instanceId")
        self.books.created[instance] = self._clock.monotonic()
        self.books.offers[instance] = offer
        self.books.tagged[_our_id(params)].append(instance)
        self.books.userdata[instance] = params.get("UserData", "")
        if params.get("DisableApiTermination") == "true":
            self.books.protected.add(instance)
        if token := params.get("ClientToken"):
            self.books.launches[token] = Launch(params, instance)
        self._listings.on_change(instance)
        self.on_launch(instance, params)
        return answer

    async def _repeat(self, known: Launch, params: Params) -> bytes:
        """The first reply again, with the instance as it is now."""
        if params != known.params:
            raise Refusal(
                "IdempotentParameterMismatch", "The request uses the same client token as a different request"
            )
        if not await self.existing(known.instance):
            raise Refusal("IdempotentInstanceTerminated", "The client token belongs to a terminated instance")
        root = await self._moto.describe_instances({"InstanceId.1": known.instance})
        reservation = xml.find(root, "reservationSet")[0][0]
        return xml.write(xml.renamed(reservation, "RunInstancesResponse"))

    def _spend(self) -> None:
        """The account's launch budget: a bucket that refills slowly."""
        rules, books, now = self.rules, self.books, self._clock.monotonic()
        if not rules.bucket_size:
            return
        if not books.budget_at:
            books.budget, books.budget_at = rules.bucket_size, now
        books.budget = min(rules.bucket_size, books.budget + (now - books.budget_at) * rules.bucket_refill)
        books.budget_at = now
        if books.budget < 1:
            raise Refusal("RequestLimitExceeded", "Request limit exceeded.", 503)
        books.budget -= 1

    async def describe(self, params: Params, body: bytes, headers: Mapping[str, str]) -> bytes:
        if (token := params.get("NextToken")) is not None:
            if token not in self.books.pages:
                raise Refusal("InvalidNextToken", "The token is not valid")
            return self.books.pages[token]
        asked = _ids(params)
        if asked and params.get("MaxResults"):
            raise Refusal(
                "InvalidParameterCombination", "The parameter instancesSet cannot be used with the parameter maxResults"
            )
        if hidden := [id for id in asked if self._is_hidden(id)]:
            raise Refusal("InvalidInstanceID.NotFound", f"The instance ID '{hidden[0]}' does not exist")
        narrowed = self._narrowed(params)
        if self.rules.remembers_listings and not asked and not narrowed:
            root = await self._listings.answer(params)
        else:
            root = await self._moto.describe_instances({**params, **narrowed})
        xml.keep(root, "instancesSet", lambda each: not self._is_hidden(xml.text(each, "instanceId")))
        xml.keep(root, "reservationSet", lambda group: bool(xml.entries(group, "instancesSet")))
        for each in described(root):
            if self.books.interrupted.get(xml.text(each, "instanceId"), math.inf) <= self._clock.monotonic():
                _set_reason(each, _SPOT_ENDED, f"{_SPOT_ENDED}: Instance terminated by the spot service")
        return self._paged(root, params) if not asked else xml.write(root)

    def _narrowed(self, params: Params) -> Params:
        """moto looks at every instance for a filter, which takes a second for hundreds of them: so it gets IDs as well."""
        known = self.books.tagged.get(params.get("Filter.1.Value.1", ""), [])
        if params.get("Filter.1.Name") != _ID_TAG_FILTER:
            return {}
        return {f"InstanceId.{number}": id for number, id in enumerate(known, 1)}

    def _is_hidden(self, id: str) -> bool:
        """Not visible yet, or terminated so long ago that it is no longer listed."""
        now = self._clock.monotonic()
        created, terminated = self.books.created.get(id, -math.inf), self.books.terminated.get(id, math.inf)
        return now < created + self.rules.visible_after or now >= terminated + self.rules.terminated_shown

    def _paged(self, root: xml.Element, params: Params) -> bytes:
        size = min(self.rules.page_size, int(params.get("MaxResults") or 1000))
        holder = xml.find(root, "reservationSet")[0]
        groups = list(holder)
        pages = [groups[start : start + size] for start in range(0, len(groups), size)] or [[]]
        tokens = [f"page-{len(self.books.pages)}-{number}" for number in range(1, len(pages))]
        written = []
        for number, page in enumerate(pages):
            for group in list(holder):
                holder.remove(group)
            holder.extend(page)
            for old in xml.children(root, "nextToken"):
                root.remove(old)
            if number < len(tokens):
                xml.add(root, "nextToken", tokens[number])
            written.append(xml.write(root))
        self.books.pages.update(zip(tokens, written[1:], strict=True))
        return written[0]

    async def terminate(self, params: Params, body: bytes, headers: Mapping[str, str]) -> bytes:
        ids = _ids(params)
        if hidden := [id for id in ids if self._is_hidden(id)]:
            raise Refusal("InvalidInstanceID.NotFound", f"The instance ID '{hidden[0]}' does not exist")
        if guarded := [id for id in ids if id in self.books.protected]:
            message = (
                f"The instance '{guarded[0]}' may not be terminated. Modify its 'disableApiTermination' attribute."
            )
            raise Refusal("OperationNotPermitted", message)
        answer = await self._moto.call(body, headers)
        self._ended(ids)
        return answer

    async def modify_attribute(self, params: Params, body: bytes, headers: Mapping[str, str]) -> bytes:
        if "DisableApiTermination.Value" in params:
            change = self.books.protected.add if params["DisableApiTermination.Value"] == "true" else None
            (change or self.books.protected.discard)(params.get("InstanceId", ""))
        return await self._moto.call(body, headers)

    def _ended(self, ids: Iterable[str]) -> None:
        for id in ids:
            self._listings.on_change(id)
            if (offer := self.books.offers.pop(id, None)) is not None:
                self.rules.give_back(offer)
                self.on_end(id)
            self.books.terminated.setdefault(id, self._clock.monotonic())

    async def console(self, params: Params, body: bytes, headers: Mapping[str, str]) -> bytes:
        id = params.get("InstanceId", "")
        _check_ids([id])
        root = xml.parse(await self._moto.call(body, headers))
        text = base64.b64encode(self.books.console.get(id, "").encode()).decode()
        for output in xml.find(root, "output"):
            output.text = text
        return xml.write(root)


described: Callable[[xml.Element], list[xml.Element]] = functools.partial(xml.all_entries, name="instancesSet")


def _our_id(params: Params) -> str:
    key = next((name for name, value in params.items() if value == _ID_TAG), "")
    return params.get(key.removesuffix("Key") + "Value", "") if key else ""


def _check_interface_tags(params: Params) -> None:
    numbers = {name.split(".")[1] for name in params if name.startswith("NetworkInterface.")}
    is_tagged = "network-interface" in (value for name, value in params.items() if name.endswith(".ResourceType"))
    if is_tagged and numbers and all(f"NetworkInterface.{number}.NetworkInterfaceId" in params for number in numbers):
        message = "You cannot specify tags for network interfaces if there are no network interfaces being created"
        raise Refusal("InvalidParameterValue", f"{message} by the request.")


def _ids(params: Params) -> list[str]:
    ids = [value for name, value in params.items() if name.startswith("InstanceId.")]
    _check_ids(ids)
    return ids


def _check_ids(ids: Iterable[str]) -> None:
    for id in ids:
        if not _ID.fullmatch(id):
            raise Refusal("InvalidInstanceID.Malformed", f'Invalid id: "{id}"')


def _set_reason(instance: xml.Element, code: str, message: str) -> None:
    for old in xml.children(instance, "stateReason"):
        instance.remove(old)
    reason = xml.add(instance, "stateReason", "")
    xml.add(reason, "code", code)
    xml.add(reason, "message", message)
