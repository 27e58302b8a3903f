"""Forecasts that play hours of virtual time."""

import xml.etree.ElementTree as xml
from typing import Any

import pytest

from nstance.sim.forecasting import chart, scenarios
from nstance.sim.forecasting.adapt import adapt
from nstance.sim.forecasting.forecast import Forecast, Options, forecast
from unit.sim.test_sim_forecast import CONFIG, EXAMPLES


def play(document: dict[str, Any], **options: Any) -> Forecast:
    return forecast(document, Options(**options))


@pytest.mark.parametrize("scenario", scenarios.SCENARIOS)
def test_every_scenario_ends_with_complete_groups(scenario: str) -> None:
    document = adapt(CONFIG, source="config.jsonc", agents=6)
    result = play(document, scenario=scenario, hours=0.8)
    last = result.points[-1]
    assert last.hour == pytest.approx(result.hours)
    assert (last.desired, last.ready, last.starting) == (6, 6, 0)
    assert last.requests > 100
    assert 0 < last.price < 1
    assert result.events
    # Something happened at all.
    assert last.created > 0 or result.counts.get("terms", 0) > 0 or scenario == "slow-storage"
    assert result.points == sorted(result.points, key=lambda point: (point.hour, point.requests))
    xml.fromstring(chart.draw(scenario, result))


def test_processes_start_sooner_than_cloud_vms() -> None:
    """Otherwise the example's registration timeout of half a minute would be too short."""
    document = adapt((EXAMPLES / "config-dev.jsonc").read_text(), source="config.jsonc", agents=6)
    result = play(document, scenario="spot-storm", hours=0.3, all_spot=True)
    assert result.points[-1].ready == 6
    assert result.counts["calls create"] <= 6


def test_only_spot_instances_are_interrupted() -> None:
    mixed = CONFIG.replace('"db": {', '"db": {"args": {"InstanceMarketOptions": {"MarketType": "on-demand"}}, ')
    taken: dict[str, int] = {}
    for all_spot in (False, True):
        document = adapt(mixed, source="config.jsonc", agents=60)
        result = play(document, scenario="spot-storm", hours=0.3, all_spot=all_spot)
        taken[str(all_spot)] = result.points[-1].created
    assert taken == {"False": 20, "True": 30}


def test_created_instances_are_counted_although_answers_are_lost() -> None:
    """In a brown-out, agents register before the leader knows their VMs."""
    document = adapt(CONFIG, source="config.jsonc", agents=60)
    result = play(document, scenario="zone-brown-out", hours=1.0)
    assert result.points[-1].ready == 60
    assert result.points[-1].created >= 6


@pytest.mark.parametrize(
    ("scenario", "hours", "quiet", "repeated"),
    [("spot-storm", 2.0, 1.0, 0.0), ("failover-hourly", 2.0, 1.5, 0.0), ("bad-image", 4.0, 2.0, 0.0)],
)
def test_skipped_hours_count_the_same_as_played_ones(
    scenario: str, hours: float, quiet: float, repeated: float
) -> None:
    """Skipped hours and repeated rounds count the same as playing them."""
    document = adapt(CONFIG.replace('"db": {"template": "small", "size": 1}', ""), source="config.jsonc", agents=6)
    skipped = play(document, scenario=scenario, hours=hours)
    played = play(document, scenario=scenario, hours=hours, play_all=True)
    assert played.skipped == played.repeated == 0
    assert skipped.skipped > quiet
    assert skipped.repeated >= repeated
    last, wanted = skipped.points[-1], played.points[-1]
    assert last.requests == pytest.approx(wanted.requests, rel=0.04)
    assert last.price == pytest.approx(wanted.price, rel=0.04)
    assert (last.ready, last.starting, last.leaving) == (wanted.ready, wanted.starting, wanted.leaving)
    for what in ("calls create", "calls delete", "terms", "decided unregistered"):
        assert skipped.counts.get(what, 0) == pytest.approx(played.counts.get(what, 0), abs=1), what
    assert last.created == pytest.approx(wanted.created, abs=1)
    assert skipped.points == sorted(skipped.points, key=lambda point: (point.hour, point.requests))


def test_no_hour_is_skipped_where_instances_expire() -> None:
    old = CONFIG.replace('"subnet_pools"', '"expiry": {"forced_age": "30m"}, "subnet_pools"')
    document = adapt(old, source="config.jsonc", agents=3)
    result = play(document, scenario="slow-storage", hours=1.5)
    assert result.skipped == 0
    assert result.points[-1].created >= 3
