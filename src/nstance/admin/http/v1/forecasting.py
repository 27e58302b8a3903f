"""Forecasts: a scenario of the simulator on a shard's configuration."""

from aiohttp import web

from nstance.admin.http.fleet import Fleet
from nstance.admin.http.forecasts import SCENARIOS, BusyError, ForecastRequest, Forecasts
from nstance.admin.http.problems import ProblemError
from nstance.admin.http.v1 import fields
from nstance.admin.http.v1.bucket import BucketRoutes
from nstance.admin.http.v1.fields import Fields, field
from nstance.admin.http.v1.replies import Shards, answer
from nstance.admin.http.v1.routing import Call, RouteGroup, route
from nstance.admin.json_schema import list_schema, record_schema, ref

DEFAULT_HOURS = 2.0
MAX_AGENTS = 20_000
NEW: Fields = {
    "shard": field(fields.NAME, "The shard whose configuration is played.", required=True),
    "scenario": field(fields.choice(*SCENARIOS), "What happens.", required=True),
    "hours": field(fields.HOURS, f"Virtual time; default {DEFAULT_HOURS:g}."),
    "agents": field(fields.COUNT, "Scale the groups to so many instances in total; default: as many as desired now."),
    "all_spot": field(fields.FLAG, "spot-storm: as if every VM were a spot VM."),
}
ONE = "/v1/forecasts/{forecast}"


class ForecastRoutes(RouteGroup):
    tag = "forecasts"

    def __init__(self, shards: Shards, fleet: Fleet, bucket: BucketRoutes, forecasts: Forecasts) -> None:
        self._shards = shards
        self._fleet = fleet
        self._bucket = bucket
        self._forecasts = forecasts

    @route(
        "GET",
        "/v1/forecasts",
        "The latest forecasts, newest first, without their points.",
        reply=record_schema({"forecasts": list_schema(ref("Forecast"))}),
    )
    async def list(self, call: Call) -> web.Response:
        return answer(call, {"forecasts": self._forecasts.list()})

    @route(
        "POST",
        "/v1/forecasts",
        "Play a scenario in the background. Nothing of the shard is called or changed.",
        body=NEW,
        reply=ref("Forecast"),
    )
    async def start(self, call: Call) -> web.Response:
        shard = self._shards.one(call.body["shard"]).shard
        desired = sum(group["size"] for group in self._fleet.feeds[shard].groups.values())
        agents = call.body.get("agents", desired) or None
        if agents is not None and agents > MAX_AGENTS:
            raise ProblemError(400, f"agents: expected at most {MAX_AGENTS:,}")
        request = ForecastRequest(
            shard=shard,
            scenario=call.body["scenario"],
            hours=float(call.body.get("hours", DEFAULT_HOURS)),
            agents=agents,
            all_spot=call.body.get("all_spot", False),
        )
        config = await self._bucket.stored_config(shard)
        try:
            return answer(call, self._forecasts.start(config, request))
        except BusyError as busy:
            raise ProblemError(409, str(busy)) from None

    @route("GET", ONE, "A forecast with its points.", reply=ref("Forecast"))
    async def show(self, call: Call) -> web.Response:
        found = self._forecasts.get(call.path["forecast"])
        if found is None:
            raise _no_forecast()
        return answer(call, found)

    @route("DELETE", ONE, "Cancel a forecast that is running.", reply=ref("Forecast"))
    async def cancel(self, call: Call) -> web.Response:
        found = await self._forecasts.cancel(call.path["forecast"])
        if found is None:
            raise _no_forecast()
        return answer(call, found)


def _no_forecast() -> ProblemError:
    return ProblemError(404, "there is no such forecast; only the latest ones are kept, until this program ends")
