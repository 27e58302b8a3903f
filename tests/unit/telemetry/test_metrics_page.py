"""docs/metrics.md names what a server says, with its labels, and nothing else."""

import re
from pathlib import Path

from nstance.model.decision import ReasonCode
from nstance.model.ids import GroupKey, GroupName, TenantId
from nstance.telemetry.metrics import CacheCount, GroupCount, Metrics

PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
WEB = GroupKey(TenantId("default"), GroupName("web"))


def exported() -> dict[str, set[str]]:
    """Each metric with its labels, as Prometheus reads it."""
    metrics = Metrics()
    metrics.count_groups(lambda: [GroupCount(key=WEB, size=1, states={})])
    metrics.count_cache(lambda: CacheCount(on_disk=True, dropped=0))
    for observe in (metrics.replaced, metrics.created, metrics.registered, metrics.drained):
        observe(WEB, 1.0)
    metrics.storage_request("get", "ok")
    metrics.provider_request("get", "ok")
    metrics.decided(ReasonCode.SCALE_UP)
    metrics.certificates_expire(server=1.0, ca=2.0)
    text = metrics.render().decode()
    found: dict[str, set[str]] = {}
    for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE):
        [labels] = {
            frozenset(re.findall(r'(\w+)="', sample)) - {"le"}
            for sample in re.findall(rf"^{name}(?:_count)?(\{{.*?\}})? ", text, re.MULTILINE)
        }
        found[name] = set(labels)
    return found


def test_the_page_lists_every_metric_with_its_labels() -> None:
    rows = re.findall(r"^\| `(nstance_\w+)` \| (.*?)\|", PAGE, re.MULTILINE)
    assert {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows} == exported()


def test_the_alarms_name_metrics_that_exist() -> None:
    [alarms] = re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL)
    assert set(re.findall(r"nstance_\w+", alarms)) <= exported().keys()
    codes = re.findall(r'reason=~"(.*?)"', alarms)
    assert {code for each in codes for code in each.split("|")} <= {code.value for code in ReasonCode}
