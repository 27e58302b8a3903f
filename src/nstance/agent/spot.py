"""The cloud wants this machine back: said to the server the moment the metadata service says it.

Only machines whose life cycle says spot are watched; all others ask once. What the service says is kept until the
session ends, so a notice that is repeated is told once. Errors are retried for ever, each reason logged once: a machine
that cannot read its notices still serves. The trap: Google's service answers a waiting question when the value
*changes*, so a change between two questions would be slept through; each question names the version it knows.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeVar

from nstance.agent import metadata, plan
from nstance.agent.metadata import Answer, Unavailable
from nstance.agent.settings import Address, Provider, Settings
from nstance.clock import Clock, Rng
from nstance.v1 import agent_pb2

DMI = Path("/sys/class/dmi/id")
TOKEN_SECONDS = 21600  # the longest that AWS allows
TOKEN_USE = 0.5  # of its life
GOOGLE_WARNING_SECONDS = 30.0
GOOGLE_WAIT_SECONDS = 10  # short against the warning: a connection that died quietly must not cost all of it
MAX_REASONS = 64

log = logging.getLogger(__name__)

T = TypeVar("T")


class Source(Protocol):
    async def is_spot(self) -> bool:
        """Raises Unavailable, as does `look`."""
        ...

    async def look(self) -> list[agent_pb2.Notice]:
        """What is known now; may wait for a while until there is something new."""
        ...


async def watch(given: Settings, tell: Callable[[agent_pb2.Notice], None], *, clock: Clock, rng: Rng) -> None:
    """For ever on a spot machine; elsewhere it returns."""
    provider = given.provider or found_provider()
    source: Source
    if provider is Provider.AWS:
        source = Aws(given.metadata, clock)
    elif provider is Provider.GOOGLE:
        source = Google(given.metadata, clock)
    else:
        return
    patience = _Patience(clock, rng)
    if not await patience.until_answered(source.is_spot):
        log.info("not a spot machine: no notices to watch for", extra={"provider": provider.value})
        return
    log.info("a spot machine: watching for notices", extra={"provider": provider.value})
    patience.known_spot = True
    told: dict[int, agent_pb2.Notice] = {}
    while True:
        began = clock.monotonic()
        for notice in await patience.until_answered(source.look):
            if told.get(notice.kind) != notice:
                told[notice.kind] = notice
                log.warning("the provider gave notice", extra={"detail": notice.detail})
                tell(notice)
        await clock.sleep(max(0.0, given.spot_poll_interval - (clock.monotonic() - began)))


class _Patience:
    """Asks until there is an answer."""

    def __init__(self, clock: Clock, rng: Rng) -> None:
        self._clock, self._rng = clock, rng
        self.known_spot = False
        self._reasons: set[str] = set()

    async def until_answered(self, question: Callable[[], Awaitable[T]]) -> T:
        failures = 0
        while True:
            try:
                return await question()
            except Unavailable as error:
                reason = str(error)
            except Exception as error:
                # A bug or an answer nobody foresaw must not cost the instance its agent.
                log.debug("the metadata service was not understood", exc_info=True)
                reason = f"{type(error).__name__}: {error}"
            failures += 1
            new = reason not in self._reasons and len(self._reasons) < MAX_REASONS
            if new:
                self._reasons.add(reason)
            level = logging.WARNING if new else logging.DEBUG
            log.log(level, "no word from the metadata service; trying again", extra={"reason": reason})
            await self._clock.sleep(plan.spot_retry(failures, self._rng, known_spot=self.known_spot))


class Aws:
    def __init__(self, address: Address, clock: Clock) -> None:
        self._address, self._clock = address, clock
        self._token: str | None = None
        self._token_until = 0.0

    async def is_spot(self) -> bool:
        answer = await self._get("instance-life-cycle")
        if answer is None:
            raise Unavailable("expected a life cycle, found none")
        return answer.text() == "spot"

    async def look(self) -> list[agent_pb2.Notice]:
        """A termination is told even if the question for the milder hint would fail: it makes the hint needless."""
        if (answer := await self._get("spot/instance-action")) is not None:
            word, deadline = _event(answer, "action", "time")
            return [_notice(agent_pb2.Notice.SPOT_TERMINATION, deadline, f"AWS spot interruption: {word}")]
        if (answer := await self._get("events/recommendations/rebalance")) is not None:
            word, _ = _event(answer, "noticeTime", "noticeTime")
            return [_notice(agent_pb2.Notice.SPOT_REBALANCE, 0, f"AWS rebalance recommendation of {word}")]
        return []

    async def _get(self, path: str) -> Answer | None:
        """None: the service says that there is no such thing."""
        whole = f"/latest/meta-data/{path}"
        answer = await self._ask(whole)
        if answer.status == 401:
            self._token = None  # it has expired before its time, as after a hibernation
            answer = await self._ask(whole)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise Unavailable(f"GET {whole}: expected status 200, found {answer.status}")
        return answer

    async def _ask(self, path: str) -> Answer:
        if self._token is None or self._clock.boot() >= self._token_until:
            self._token = await self._new_token()
            self._token_until = self._clock.boot() + TOKEN_SECONDS * TOKEN_USE
        return await metadata.ask("GET", self._address, path, headers={"X-aws-ec2-metadata-token": self._token})

    async def _new_token(self) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
        answer = await metadata.ask("PUT", self._address, "/latest/api/token", headers=headers)
        token = answer.text()
        if answer.status != 200:
            raise Unavailable(f"PUT /latest/api/token: expected status 200, found {answer.status}")
        if not (0 < len(token) <= 1024 and token.isascii() and token.isprintable()):
            raise Unavailable("PUT /latest/api/token: expected a token, found something else")
        return token


class Google:
    def __init__(self, address: Address, clock: Clock) -> None:
        self._address, self._clock = address, clock
        self._version: str | None = None  # None: nothing heard yet, so do not wait
        self._deadline_ms = 0

    async def is_spot(self) -> bool:
        preemptible = await self._get("scheduling/preemptible")
        if preemptible is not None and preemptible.text().upper() == "TRUE":
            return True
        model = await self._get("scheduling/provisioning-model")
        return model is not None and model.text().upper() == "SPOT"

    async def look(self) -> list[agent_pb2.Notice]:
        query, timeout = "", metadata.REQUEST_SECONDS
        if self._version is not None:
            query, timeout = f"?wait_for_change=true&timeout_sec={GOOGLE_WAIT_SECONDS}", timeout + GOOGLE_WAIT_SECONDS
            if self._version:
                query += f"&last_etag={self._version}"
        self._version = None  # after an error, ask without waiting
        answer = await self._get("preempted", query=query, timeout=timeout)
        word = answer.text().upper() if answer is not None else ""
        if answer is None or word not in ("TRUE", "FALSE"):
            raise Unavailable(f"preempted: expected TRUE or FALSE, found {word[:32]!r}")
        etag = answer.headers.get("etag", "")
        self._version = etag if etag.isascii() and etag.isalnum() and len(etag) <= 64 else ""
        if word == "FALSE":
            return []
        if not self._deadline_ms:
            self._deadline_ms = int((self._clock.wall() + GOOGLE_WARNING_SECONDS) * 1000)
        return [_notice(agent_pb2.Notice.SPOT_TERMINATION, self._deadline_ms, "Google preemption")]

    async def _get(self, path: str, *, query: str = "", timeout: float = metadata.REQUEST_SECONDS) -> Answer | None:
        whole = f"/computeMetadata/v1/instance/{path}"
        headers = {"Metadata-Flavor": "Google"}
        answer = await metadata.ask("GET", self._address, whole + query, headers=headers, timeout=timeout)
        if answer.headers.get("metadata-flavor") != "Google":
            raise Unavailable(f"GET {whole}: expected an answer of Google's service, found somebody else's")
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise Unavailable(f"GET {whole}: expected status 200, found {answer.status}")
        return answer


def found_provider(dmi: Path = DMI) -> Provider:
    """By what the firmware says; nobody is asked over the network."""
    words = " ".join(_line(dmi / name) for name in ("sys_vendor", "product_name", "bios_vendor", "bios_version"))
    if "amazon" in words:
        return Provider.AWS
    if "google compute engine" in words:
        return Provider.GOOGLE
    return Provider.PROXMOX if "proxmox" in words else Provider.NONE


def _line(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip().lower()
    except OSError:
        return ""  # no firmware tables: a container, or another architecture


def _event(answer: Answer, word: str, time: str) -> tuple[str, int]:
    """An AWS event's word and its time in milliseconds, 0 if it names none."""
    try:
        event = json.loads(answer.body)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict) or not isinstance(event.get(word), str):
        raise Unavailable(f"expected an event with {word!r}, found {answer.text()[:64]!r}")
    return event[word][:64].encode("ascii", "replace").decode(), _unix_ms(event.get(time))


def _unix_ms(text: object) -> int:
    """0 for what is no time: the event counts all the same."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        moment = None
    if moment is None:
        return 0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))


def _notice(kind: "agent_pb2.Notice.Kind.ValueType", deadline_ms: int, detail: str) -> agent_pb2.Notice:
    return agent_pb2.Notice(kind=kind, deadline_unix_ms=deadline_ms, detail=detail)
