"""Spot interruption notices from the cloud's metadata service, forwarded to the server.

Only machines whose life cycle is spot are watched; others ask once. A repeated notice is forwarded once. Errors are
retried forever, each reason logged once: a machine that cannot read its notices still works. The trap: Google's service
answers a waiting request when the value *changes*, so a change between two requests would be missed; each request names
the version that it knows.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeVar

from nstance.agent import metadata, timing
from nstance.agent.metadata import Answer, MetadataUnavailableError
from nstance.agent.settings import Address, Provider, Settings
from nstance.clock import Clock, Rng
from nstance.tasks.backoff import retry
from nstance.v1 import agent_pb2

DMI = Path("/sys/class/dmi/id")
TOKEN_SECONDS = 21600  # the longest that AWS allows
TOKEN_USE = 0.5  # of its life
GOOGLE_WARNING_SECONDS = 30.0
GOOGLE_WAIT_SECONDS = 10  # short against the warning, so that a dead connection does not cost all of it
MAX_REASONS = 64

log = logging.getLogger(__name__)

T = TypeVar("T")


class Source(Protocol):
    async def is_spot(self) -> bool:
        """Raises MetadataUnavailableError, as does `read_notices`."""
        ...

    async def read_notices(self) -> list[agent_pb2.Notice]:
        """Current notices; may wait a while for a new one."""
        ...


async def watch(settings: Settings, on_notice: Callable[[agent_pb2.Notice], None], *, clock: Clock, rng: Rng) -> None:
    """Never returns on a spot machine; returns at once on others."""
    provider = settings.provider or detect_provider()
    source: Source
    if provider is Provider.AWS:
        source = Aws(settings.metadata, clock)
    elif provider is Provider.GOOGLE:
        source = Google(settings.metadata, clock)
    else:
        return
    retries = _Retries(clock, rng)
    if not await retries.until_answered(source.is_spot):
        log.info("not a spot machine, no notices to watch for", extra={"provider": provider.value})
        return
    log.info("watching for spot notices", extra={"provider": provider.value})
    retries.known_spot = True
    forwarded: dict[int, agent_pb2.Notice] = {}
    while True:
        began = clock.monotonic()
        for notice in await retries.until_answered(source.read_notices):
            if forwarded.get(notice.kind) != notice:
                forwarded[notice.kind] = notice
                log.warning("spot notice received", extra={"detail": notice.detail})
                on_notice(notice)
        await clock.sleep(max(0.0, settings.spot_poll_interval - (clock.monotonic() - began)))


class _Retries:
    """Repeats a request until there is an answer."""

    def __init__(self, clock: Clock, rng: Rng) -> None:
        self._clock, self._rng = clock, rng
        self.known_spot = False
        self._reasons: set[str] = set()

    async def until_answered(self, question: Callable[[], Awaitable[T]]) -> T:
        # Any error: a bug or an unexpected answer must not end the agent.
        return await retry(question, clock=self._clock, expected=Exception, on_failure=self._on_failure)

    def _on_failure(self, error: Exception, failures: int) -> float:
        reason = str(error)
        if not isinstance(error, MetadataUnavailableError):
            log.debug("failed to understand the metadata service", exc_info=error)
            reason = f"{type(error).__name__}: {error}"
        is_new = reason not in self._reasons and len(self._reasons) < MAX_REASONS
        if is_new:
            self._reasons.add(reason)
        level = logging.WARNING if is_new else logging.DEBUG
        log.log(level, "failed to read the metadata service, retrying", extra={"reason": reason})
        return timing.spot_retry_delay(failures, self._rng, known_spot=self.known_spot)


class Aws:
    def __init__(self, address: Address, clock: Clock) -> None:
        self._address, self._clock = address, clock
        self._token: str | None = None
        self._token_until = 0.0

    async def is_spot(self) -> bool:
        answer = await self._get("instance-life-cycle")
        if answer is None:
            raise MetadataUnavailableError("expected a life cycle, found none")
        return answer.text() == "spot"

    async def read_notices(self) -> list[agent_pb2.Notice]:
        """A termination is returned without asking for the weaker recommendation, which could fail."""
        if (answer := await self._get("spot/instance-action")) is not None:
            word, deadline = _event(answer, "action", "time")
            return [_notice(agent_pb2.Notice.SPOT_TERMINATION, deadline, f"AWS spot interruption: {word}")]
        if (answer := await self._get("events/recommendations/rebalance")) is not None:
            word, _ = _event(answer, "noticeTime", "noticeTime")
            return [_notice(agent_pb2.Notice.SPOT_REBALANCE, 0, f"AWS rebalance recommendation of {word}")]
        return []

    async def _get(self, path: str) -> Answer | None:
        """None: the service answers that there is no such value."""
        full_path = f"/latest/meta-data/{path}"
        answer = await self._ask(full_path)
        if answer.status == 401:
            self._token = None  # expired early, for example after a hibernation
            answer = await self._ask(full_path)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise MetadataUnavailableError(f"GET {full_path}: expected status 200, found {answer.status}")
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
            raise MetadataUnavailableError(f"PUT /latest/api/token: expected status 200, found {answer.status}")
        if not (0 < len(token) <= 1024 and token.isascii() and token.isprintable()):
            raise MetadataUnavailableError("PUT /latest/api/token: expected a token, found something else")
        return token


class Google:
    def __init__(self, address: Address, clock: Clock) -> None:
        self._address, self._clock = address, clock
        self._version: str | None = None  # None: no answer yet, so do not wait for a change
        self._deadline_ms = 0

    async def is_spot(self) -> bool:
        preemptible = await self._get("scheduling/preemptible")
        if preemptible is not None and preemptible.text().upper() == "TRUE":
            return True
        model = await self._get("scheduling/provisioning-model")
        return model is not None and model.text().upper() == "SPOT"

    async def read_notices(self) -> list[agent_pb2.Notice]:
        query, timeout = "", metadata.REQUEST_SECONDS
        if self._version is not None:
            query, timeout = f"?wait_for_change=true&timeout_sec={GOOGLE_WAIT_SECONDS}", timeout + GOOGLE_WAIT_SECONDS
            if self._version:
                query += f"&last_etag={self._version}"
        self._version = None  # after an error, ask without waiting
        answer = await self._get("preempted", query=query, timeout=timeout)
        word = answer.text().upper() if answer is not None else ""
        if answer is None or word not in ("TRUE", "FALSE"):
            raise MetadataUnavailableError(f"preempted: expected TRUE or FALSE, found {word[:32]!r}")
        etag = answer.headers.get("etag", "")
        self._version = etag if etag.isascii() and etag.isalnum() and len(etag) <= 64 else ""
        if word == "FALSE":
            return []
        if not self._deadline_ms:
            self._deadline_ms = int((self._clock.wall() + GOOGLE_WARNING_SECONDS) * 1000)
        return [_notice(agent_pb2.Notice.SPOT_TERMINATION, self._deadline_ms, "Google preemption")]

    async def _get(self, path: str, *, query: str = "", timeout: float = metadata.REQUEST_SECONDS) -> Answer | None:
        full_path = f"/computeMetadata/v1/instance/{path}"
        headers = {"Metadata-Flavor": "Google"}
        answer = await metadata.ask("GET", self._address, full_path + query, headers=headers, timeout=timeout)
        if answer.headers.get("metadata-flavor") != "Google":
            raise MetadataUnavailableError(
                f"GET {full_path}: expected an answer of Google's metadata service, found another"
            )
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise MetadataUnavailableError(f"GET {full_path}: expected status 200, found {answer.status}")
        return answer


def detect_provider(dmi: Path = DMI) -> Provider:
    """Detected from the firmware tables, without a network request."""
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
    """A field of an AWS event, and its time in milliseconds (0 if it has none)."""
    try:
        event = json.loads(answer.body)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict) or not isinstance(event.get(word), str):
        raise MetadataUnavailableError(f"expected an event with {word!r}, found {answer.text()[:64]!r}")
    return event[word][:64].encode("ascii", "replace").decode(), _unix_ms(event.get(time))


def _unix_ms(text: object) -> int:
    """0 if it is not a time: the event counts anyway."""
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
