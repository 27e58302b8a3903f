"""`nstance-sim run`: a user's configuration in a scenario."""

import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from nstance.sim import forecast, main

CONFIG = """{
  // as a person writes it
  "cluster": {"id": "mine", "secrets": {"encryption_key": {"provider": "env", "source": "KEY"}}},
  "shard": {"id": "east", "infra": {"provider": "aws", "region": "eu", "zone": "a"}, "subnet_pools": {"all": ["subnet-1"]}},
  "templates": {"small": {"kind": "web", "instance_type": "t4g.small", "subnet_pool": "all"}},
  "groups": {"default": {"web": {"template": "small", "size": 2}, "db": {"template": "small", "size": 1}}},
}"""


def test_groups_keep_their_proportions() -> None:
    document = forecast.adapt(CONFIG, source="config.jsonc", agents=6)
    assert {name: group["size"] for name, group in document["groups"]["default"].items()} == {"web": 4, "db": 2}


@pytest.mark.parametrize("scenario", forecast.SCENARIOS)
def test_every_scenario_ends_with_its_groups_whole(scenario: str) -> None:
    document = forecast.adapt(CONFIG, source="config.jsonc", agents=6)
    told = forecast.forecast(document, scenario=scenario, hours=1.0 if scenario == "failover-hourly" else 0.4)
    assert told.wished[-1] == told.ready[-1] == 6
    assert told.price() > 0
    # Something happened at all.
    assert told.counts["calls create"] > 6 or told.counts["terms"] > 1 or scenario == "slow-storage"


def test_it_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, picture = tmp_path / "config.jsonc", tmp_path / "storm.svg"
    config.write_text(CONFIG)
    options = ["--config", str(config), "--scenario", "spot-storm", "--hours", "0.3", "--svg", str(picture)]
    assert main.main(["run", *options]) == 0
    assert "storage requests" in capsys.readouterr().out
    assert xml.parse(picture).getroot().tag.endswith("svg")


def test_a_bad_configuration_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.jsonc"
    config.write_text('{"cluster": {}}')
    assert main.main(["run", "--config", str(config), "--scenario", "spot-storm"]) == 2
    assert "not valid" in capsys.readouterr().err
