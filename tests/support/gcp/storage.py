"""Google's object storage: generations, conditions also for deletes, and one write per second and object."""

import itertools
import time
from dataclasses import dataclass, field

from aiohttp import web

from support.gcp.stand_in import GoogleFault, Request, StandIn

PAGE_SIZE = 1000


@dataclass(frozen=True, slots=True)
class Kept:
    body: bytes
    generation: int


@dataclass(slots=True)
class Buckets:
    """`write_gap`: a write that follows the last one on the same object sooner is a 429. Zero: no limit."""

    stand_in: StandIn
    names: set[str] = field(default_factory=lambda: {"dev"})
    write_gap: float = 0.0
    objects: dict[tuple[str, str], Kept] = field(default_factory=dict)
    written: dict[tuple[str, str], float] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)  # objects whose writes came too soon
    written_before_delete: list[bytes] = field(default_factory=list)  # by another writer, just before each delete
    _generations: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1_700_000_000_000_000))

    def install(self) -> None:
        self.stand_in.add(
            "storage.v1",
            {
                "storage.objects.insert": self._insert,
                "storage.objects.get": self._get,
                "storage.objects.list": self._list,
                "storage.objects.delete": self._delete,
            },
        )

    async def _insert(self, request: Request) -> object:
        bucket = self._bucket(request)
        if not request.upload or request.params.get("uploadType") != "media":
            raise GoogleFault(400, "invalid", "only simple uploads are known here")
        place = (bucket, request.params["name"])
        self._check(place, request)
        self._pace(place)
        kept = self.objects[place] = Kept(request.raw, next(self._generations))
        return self._shown(place, kept)

    async def _get(self, request: Request) -> object:
        place = (self._bucket(request), request.params["object"])
        found = self.objects.get(place)
        is_media = request.params.get("alt") == "media"
        if found is None:
            text = f"No such object: {place[0]}/{place[1]}"
            if is_media:  # a media reply is no JSON, nor is its error
                return web.Response(status=404, text=text)
            raise GoogleFault(404, "notFound", text)
        if is_media:
            headers = {"x-goog-generation": str(found.generation)}
            return web.Response(body=found.body, headers=headers, content_type="application/octet-stream")
        return self._shown(place, found)

    async def _list(self, request: Request) -> object:
        bucket, params = self._bucket(request), request.params
        start = params.get("pageToken") or params.get("startOffset") or ""
        names = sorted(
            name
            for of, name in self.objects
            if of == bucket and name.startswith(params.get("prefix", "")) and name >= start
        )
        most = min(PAGE_SIZE, int(params.get("maxResults", PAGE_SIZE)))
        items = [self._shown((bucket, name), self.objects[bucket, name]) for name in names[:most]]
        page: dict[str, object] = {"kind": "storage#objects"}
        if items:
            page["items"] = items
        if len(names) > most:
            page["nextPageToken"] = names[most]
        return page

    async def _delete(self, request: Request) -> object:
        place = (self._bucket(request), request.params["object"])
        if place not in self.objects:
            raise GoogleFault(404, "notFound", f"No such object: {place[0]}/{place[1]}")
        if self.written_before_delete:
            self.objects[place] = Kept(self.written_before_delete.pop(0), next(self._generations))
        self._check(place, request)
        self._pace(place)
        del self.objects[place]
        return None

    def _bucket(self, request: Request) -> str:
        bucket = request.params["bucket"]
        self.stand_in.check(request.id, "does not have storage access to the Google Cloud Storage object.")
        if bucket not in self.names:
            raise GoogleFault(404, "notFound", "The specified bucket does not exist.")
        return bucket

    def _check(self, place: tuple[str, str], request: Request) -> None:
        wanted = request.params.get("ifGenerationMatch")
        found = self.objects.get(place)
        if wanted is not None and int(wanted) != (0 if found is None else found.generation):
            raise GoogleFault(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")

    def _pace(self, place: tuple[str, str]) -> None:
        now = time.monotonic()
        if self.write_gap and now - self.written.get(place, -1e9) < self.write_gap:
            self.refused.append(place[1])
            raise GoogleFault(429, "rateLimitExceeded", f"The object {place[1]} exceeded the rate limit for mutations")
        self.written[place] = now

    def _shown(self, place: tuple[str, str], kept: Kept) -> dict[str, str]:
        return {
            "kind": "storage#object",
            "bucket": place[0],
            "name": place[1],
            "generation": str(kept.generation),
            "size": str(len(kept.body)),
            "updated": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
        }
