"""docs/metrics.md, the alerts and the dashboards, against real scrapes of every program."""

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from component import agent_world
from component.scraped_fleet import answer_spot_notice, scraped_fleet
from component.whole_server import SHARD
from nstance.kube.queue import Result
from nstance.model.decision import ReasonCode
from nstance.model.instance import State
from nstance.model.rollout import Outcome
from nstance.telemetry.metrics import PROVIDER_CODES, STORAGE_CODES
from support import prometheus
from support.eventually import eventually

free_port = agent_world.free_port
system_state = agent_world.system_state

DOCS = Path(__file__).parents[2] / "docs"
PROMETHEUS = DOCS.parent / "deploy" / "prometheus"
GRAFANA = DOCS.parent / "deploy" / "grafana"
PAGE = (DOCS / "metrics.md").read_text()
ALERTS = (PROMETHEUS / "alerts.yaml").read_text()
SECTIONS = {"server": "Server", "operator": "Operator", "agent": "Agent", "admin": "nstance-admin serve"}


def listed(section: str) -> dict[str, frozenset[str]]:
    """The metrics of a section of the page, with their labels."""
    [body] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \| (.*?)\|", body, re.MULTILINE)
    return {name: frozenset(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


def exported(text: str) -> dict[str, frozenset[str]]:
    """The metrics of a scrape, with their labels."""
    found = {}
    for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE):
        samples = re.findall(rf"^{name}(?:_count)?(\{{.*?\}})? ", text, re.MULTILINE)
        assert samples, f"{name} has no sample"
        [found[name]] = {frozenset(re.findall(r'(\w+)="', sample)) - {"le"} for sample in samples}
    return found


async def test_the_page_lists_every_metric_and_prometheus_accepts_them(tmp_path: Path, free_port: int) -> None:
    async with scraped_fleet(tmp_path, free_port) as fleet:
        scrapes = {program: await fleet.scrape(program) for program in fleet.addresses}
    shared = listed("Every program")
    for program, section in SECTIONS.items():
        found = exported(scrapes[program])
        wanted = listed(section)
        assert {name: found[name] for name in found if name not in shared} == wanted, program
        own = {name: found.get(name, labels) for name, labels in shared.items()}
        assert own == shared, program
    assert shared.keys() <= exported(scrapes["server"]).keys()
    if prometheus.PROMTOOL is None:
        pytest.skip("promtool is not installed: metrics are not linted")
    for program, text in scrapes.items():
        code, output = await prometheus.promtool("check", "metrics", stdin=text)
        assert code == 0, f"{program}: {output}"


@pytest.mark.skipif(prometheus.PROMTOOL is None, reason="promtool is not installed: alerts are not tested")
async def test_every_alert_fires_when_it_should() -> None:
    code, output = await prometheus.promtool("test", "rules", str(PROMETHEUS / "alerts_test.yaml"))
    assert code == 0, output


def test_every_alert_has_a_test_and_a_runbook() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS)["groups"] for rule in group["rules"]]
    alerts = [rule["alert"] for rule in rules]
    tested = yaml.safe_load((PROMETHEUS / "alerts_test.yaml").read_text())["tests"]
    fired = {each["alertname"] for test in tested for each in test["alert_rule_test"] if each["exp_alerts"]}
    assert fired == set(alerts)
    assert re.findall(r"^## (\w+)$", (DOCS / "runbooks.md").read_text(), re.MULTILINE) == alerts
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"https://nstance.dev/docs/runbooks#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_alerts_and_dashboards_use_metrics_and_values_that_exist() -> None:
    known = {name for section in ("Every program", *SECTIONS.values()) for name in listed(section)} | {"up"}
    values = {
        "reason": {code.value for code in ReasonCode},
        "outcome": {outcome.value for outcome in Outcome},
        "state": {state.value for state in State},
        "code": {*STORAGE_CODES, *PROVIDER_CODES},
        "result": {result.value for result in Result},
        "kind": {"ca", "server"},
        "stat": {"mean", "max"},
        "job": {"nstance-server", "nstance-operator"},
    }
    rules = [rule["expr"] for group in yaml.safe_load(ALERTS)["groups"] for rule in group["rules"]]
    for expression in (*rules, *(each for _, each in queries())):
        names = re.findall(r"\b(?:nstance|process)_\w+|\bup\b", expression)
        assert names
        for name in names:
            assert name in known or re.sub("_(bucket|count|sum)$", "", name) in known, name
        for label, value in re.findall(r'(\w+)(?:=|=~|!=|!~)"([^"$]+)"', expression):
            assert set(value.split("|")) <= values[label], expression


# Whose answer is rightly empty in a fleet without errors.
EMPTY = {
    "Storage errors": "storage fails in no test of this kind",
    "Provider errors": "the provider refuses nothing here",
}


@pytest.mark.skipif(prometheus.PROMETHEUS is None, reason="prometheus is not installed: no query of a dashboard is run")
async def test_every_query_of_the_dashboards_finds_data(tmp_path: Path, free_port: int) -> None:
    async with scraped_fleet(tmp_path, free_port) as fleet:
        jobs: dict[str, tuple[str, dict[str, str]]] = {
            f"nstance-{program}": (address, {"shard": SHARD} if program == "server" else {})
            for program, address in fleet.addresses.items()
        }
        async with prometheus.running(tmp_path / "prometheus", free_port + 1, jobs) as running:

            async def all_up() -> bool:
                return await running.query("sum(up)") == [len(jobs)]

            await eventually(all_up)
            await answer_spot_notice(fleet.world)  # so that there is something to see between two scrapes
            for title, expression in queries():
                await eventually(functools.partial(found, running, title, expression), f"{title}: {expression}")


async def found(running: prometheus.Prometheus, title: str, expression: str) -> bool:
    expression = expression.replace("$__rate_interval", "1m")
    for variable in ("shard", "tenant", "group"):
        expression = expression.replace(f"${variable}", ".*")
    return bool(await running.query(expression)) != (title in EMPTY)


def queries() -> Iterator[tuple[str, str]]:
    """The title and expression of every query."""
    for path in sorted(GRAFANA.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield panel["title"], target["expr"]
