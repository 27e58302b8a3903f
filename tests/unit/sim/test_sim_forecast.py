"""`nstance-sim run`: forecasts for a user's configuration."""

import contextlib
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from nstance.model.ids import InstanceId
from nstance.server.config.configuration import NoConfigurationError
from nstance.sim import main
from nstance.sim.forecasting import chart, command, scenarios
from nstance.sim.forecasting.adapt import adapt
from nstance.sim.forecasting.forecast import Forecast, Point
from nstance.sim.forecasting.rounds import RoundEnd, Rounds

CONFIG = """{
  // with a comment
  "cluster": {"id": "mine", "secrets": {"encryption_key": {"provider": "env", "source": "KEY"}}},
  "shard": {"id": "east", "infra": {"provider": "aws", "region": "eu", "zone": "a"}, "subnet_pools": {"all": ["subnet-1"]}},
  "templates": {"small": {"kind": "web", "instance_type": "t4g.small", "subnet_pool": "all", "args": {
    "InstanceMarketOptions": {"MarketType": "spot"}}}},
  "groups": {"default": {"web": {"template": "small", "size": 2}, "db": {"template": "small", "size": 1}}},
}"""
EXAMPLES = Path(__file__).parents[3] / "examples"


def sizes(text: str, agents: int) -> dict[str, int]:
    document = adapt(text, source="config.jsonc", agents=agents)
    return {name: group["size"] for groups in document["groups"].values() for name, group in groups.items()}


def test_groups_keep_their_proportions() -> None:
    assert sizes(CONFIG, 6) == {"web": 4, "db": 2}


@pytest.mark.parametrize("agents", [1, 5, 13, 5000])
def test_the_total_is_exact_in_spite_of_rounding(agents: int) -> None:
    many = CONFIG.replace('"db":', "".join(f'"g{n}": {{"template": "small", "size": 1}},' for n in range(12)) + '"db":')
    assert sum(sizes(many, agents).values()) == agents


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.jsonc")), ids=lambda path: path.stem)
def test_every_example_can_be_forecast(path: Path) -> None:
    assert sum(sizes(path.read_text(), 100).values()) == 100


@pytest.mark.parametrize(
    ("args", "spot"),
    [
        ({"InstanceMarketOptions": {"MarketType": "spot"}}, True),
        ({"scheduling": {"provisioningModel": "SPOT"}}, True),
        ({"scheduling": {"preemptible": True}}, True),
        ({"scheduling": {"preemptible": False}}, False),
        ({"NetworkInterfaces": [{"Description": "no spotlight"}]}, False),
        ({}, False),
    ],
)
def test_spot_instances_are_recognized_by_their_arguments(args: dict[str, object], spot: bool) -> None:
    assert scenarios.is_spot(args) is spot


def test_a_brown_out_before_any_instance_runs_is_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The VMs boot for longer than the time until then: there is none that could die."""
    config = tmp_path / "config.jsonc"
    config.write_text(CONFIG.replace('"db": {"template": "small", "size": 1}', ""))
    options = ["--scenario", "zone-brown-out", "--hours", "0.2", "--boot", "3000", "--svg", str(tmp_path / "x.svg")]
    assert main.main(["run", "--config", str(config), *options]) == 0
    assert "brown-out, and a tenth of the VMs die" in capsys.readouterr().out


def rounds(*ends: tuple[float, int, str]) -> Rounds:
    """From when each ended, how many instances had been created by then, and which ones ran."""
    result = Rounds()
    for number, (at, made, running) in enumerate(ends):
        counts = Counter({"calls create": made, "request get": number * number})
        result.on_end(RoundEnd(at=at, counts=counts, running=frozenset(map(InstanceId, running)), point=number))
    return result


def test_rounds_that_do_the_same_in_the_same_time_are_alike() -> None:
    alike = rounds((0, 0, "x"), (100, 4, "ab"), (300, 5, "ab"), (900, 6, "ab"), (1505, 7, "ab")).find_repetition()
    assert alike is not None
    assert (alike[0].at, alike[1].at) == (300, 1505)


@pytest.mark.parametrize(
    "ends",
    [
        [(0, 0, "ab"), (600, 1, "ab"), (1200, 2, "ab")],  # the first end only says which instances run
        [(0, 0, "ab"), (100, 1, "ab"), (400, 2, "ab"), (1000, 3, "ab")],  # a back-off that grows
        [(0, 0, "ab"), (600, 1, "ab"), (1200, 2, "ab"), (1800, 4, "ab")],
        [(0, 0, "ab"), (600, 1, "bc"), (1200, 2, "cd"), (1800, 3, "de")],  # a rotation
    ],
)
def test_rounds_that_differ_or_make_progress_are_not_alike(ends: list[tuple[float, int, str]]) -> None:
    assert rounds(*ends).find_repetition() is None


def test_events_are_marked_in_the_chart() -> None:
    result = Forecast(2.0, events=[(0.5, "a <storm>"), (1.0, "a <storm>")])
    values = {"desired": 5, "starting": 0, "leaving": 0, "created": 0, "price": 0.0}
    result.points = [Point(hour=h, ready=r, requests=h, **values) for h, r in ((0.0, 5), (0.5, 2), (2.0, 5))]
    texts = [text.text for text in xml.fromstring(chart.draw("title", result)).iter() if text.tag.endswith("text")]
    assert texts.count("a <storm>") == 1
    assert result.lowest().hour == 0.5


@pytest.mark.parametrize(("about", "step"), [(0.0, 1), (1.5, 2), (2.5, 5), (7, 10), (1250, 2000), (100, 100)])
def test_ticks_are_round_numbers(about: float, step: float) -> None:
    assert chart.nice_step(about) == step


def test_it_prints_a_table_and_draws_a_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, picture = tmp_path / "config.jsonc", tmp_path / "storm.svg"
    config.write_text(CONFIG)
    options = ["--config", str(config), "--scenario", "spot-storm", "--hours", "0.3", "--svg", str(picture)]
    assert main.main(["run", *options]) == 0
    printed = capsys.readouterr().out
    for word in (
        "desired",
        "ready",
        "created",
        "requests",
        "price",
        "half of all spot VMs",
        "requests to object storage cost about $",
    ):
        assert word in printed
    assert xml.parse(picture).getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"cluster": {}}', "not valid"),
        ("{", "not valid"),
        ("\udcff", "not valid"),
        (
            CONFIG.replace('"size": 2', '"size": 0').replace('"size": 1', '"size": 0'),
            "expected a group with a size above 0",
        ),
        (CONFIG.replace('"spot"', '"capacity-block"'), "expected a group that asks for spot VMs"),
        (None, "No such file"),
    ],
)
def test_a_bad_configuration_is_explained(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.jsonc"
    if text is not None:
        config.write_text(text, errors="surrogateescape")
    assert main.main(["run", "--config", str(config), "--scenario", "spot-storm"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--agents", "0"],
        ["--agents", "٣"],
        ["--hours", "-1"],
        ["--hours", "nan"],
        ["--boot", "x"],
        ["--scenario", "meteor"],
    ],
)
def test_invalid_options_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["run", "--config", "x", "--scenario", "spot-storm", *options])
    assert options[0] in capsys.readouterr().err


def test_a_chart_that_cannot_be_written_is_reported_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.jsonc"
    config.write_text(CONFIG)
    options = ["--config", str(config), "--scenario", "spot-storm", "--svg", str(tmp_path / "no" / "x.svg")]
    assert main.main(["run", *options]) == 2
    assert "No such file" in capsys.readouterr().err


def test_an_invalid_configuration_cannot_be_adapted() -> None:
    with pytest.raises(NoConfigurationError):
        adapt("[]", source="config.jsonc", agents=None)


def test_every_scenario_has_a_docstring() -> None:
    assert all(scenario.__doc__ for scenario in scenarios.SCENARIOS.values())


def test_an_interrupt_counts_also_where_python_drops_its_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a callback of a weak reference: the forecast went on for hours."""

    def drops(document: object, options: object, progress: Callable[[float], None]) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        progress(0.5)

    config, before = tmp_path / "config.jsonc", signal.getsignal(signal.SIGINT)
    config.write_text(CONFIG)
    monkeypatch.setattr(command, "forecast", drops)
    assert (
        main.main(["run", "--config", str(config), "--scenario", "capacity", "--svg", str(tmp_path / "x.svg")]) == 130
    )
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_ends_it_without_a_traceback(tmp_path: Path) -> None:
    config, picture = tmp_path / "config.jsonc", tmp_path / "x.svg"
    config.write_text(CONFIG)
    options = ["--config", str(config), "--scenario", "slow-storage", "--agents", "300", "--hours", "100"]
    program = subprocess.Popen(
        [sys.executable, "-m", "nstance.sim.main", "run", *options, "--svg", str(picture)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not picture.exists() and program.poll() is None:  # it has begun
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(0.05)
        os.kill(program.pid, signal.SIGINT)
        _, stderr = program.communicate(timeout=60)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 130, stderr
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    assert not picture.exists()
