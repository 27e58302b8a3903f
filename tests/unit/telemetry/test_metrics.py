"""Every metric that is promised, by the name that dashboards use; and labels that cannot grow without end."""

from prometheus_client.parser import text_string_to_metric_families

from nstance.model.decision import ReasonCode
from nstance.model.ids import GroupKey, GroupName, TenantId
from nstance.model.instance import State
from nstance.objects.errors import StorageError
from nstance.providers.errors import ProviderError
from nstance.telemetry import metrics as module
from nstance.telemetry.metrics import CacheCount, GroupCount, Metrics

WEB = GroupKey(TenantId("default"), GroupName("web"))


def samples(metrics: Metrics) -> dict[str, float]:
    """Sample name with labels, as Prometheus would show it, to value."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_every_promised_metric() -> None:
    metrics = Metrics()
    metrics.count_groups(lambda: [GroupCount(key=WEB, size=3, states={State.RUNNING: 2})])
    metrics.replaced(WEB, 0.02)
    metrics.created(WEB, 2)
    metrics.registered(WEB, 20)
    metrics.drained(WEB, 200)
    metrics.leads(7)
    metrics.storage_request("get", "ok")
    metrics.provider_request("create", "throttled")
    metrics.certificate_issued()
    metrics.agents_connected(5)
    metrics.loop_lag(0.5)
    metrics.loop_failed()
    metrics.decided(ReasonCode.SCALE_UP)
    assert "nstance_cache_on_disk{}" not in samples(metrics)  # there is none yet
    metrics.count_cache(lambda: CacheCount(on_disk=False, dropped=3))
    found = samples(metrics)
    expected = {
        "nstance_instances{group=web,state=running,tenant=default}": 2,
        "nstance_instances{group=web,state=draining,tenant=default}": 0,
        "nstance_group_size{group=web,tenant=default}": 3,
        "nstance_replacement_seconds_sum{group=web,tenant=default}": 0.02,
        "nstance_create_seconds_sum{group=web,tenant=default}": 2,
        "nstance_register_seconds_sum{group=web,tenant=default}": 20,
        "nstance_drain_seconds_sum{group=web,tenant=default}": 200,
        "nstance_leader{}": 1,
        "nstance_leader_epoch{}": 7,
        "nstance_storage_requests_total{code=ok,op=get}": 1,
        "nstance_provider_requests_total{code=throttled,op=create}": 1,
        "nstance_certificates_issued_total{}": 1,
        "nstance_agents_connected{}": 5,
        "nstance_event_loop_lag_seconds{}": 0.5,
        "nstance_event_loop_errors_total{}": 1,
        "nstance_decisions_total{reason=scale-up}": 1,
        "nstance_cache_on_disk{}": 0,
        "nstance_cache_dropped_total{}": 3,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert not [name for name in found if "_created" in name]


def test_servers_in_one_process_do_not_share() -> None:
    one, two = Metrics(), Metrics()
    one.leads(3)
    assert samples(one)["nstance_leader{}"] == 1
    assert samples(two)["nstance_leader{}"] == 0
    one.stands_by()
    assert samples(one)["nstance_leader{}"] == 0
    assert samples(one)["nstance_leader_epoch{}"] == 3


def test_a_group_that_is_gone_leaves_no_number() -> None:
    metrics = Metrics()
    groups = [GroupCount(key=WEB, size=3, states={})]
    metrics.count_groups(lambda: groups)
    assert "nstance_group_size{group=web,tenant=default}" in samples(metrics)
    groups.clear()
    assert not [name for name in samples(metrics) if "web" in name]


def test_labels_are_bounded() -> None:
    metrics, known = Metrics(), range(module.MAX_GROUPS)
    for number in range(len(known) + 47):
        metrics.storage_request(f"op{number}", f"code{number}")
        metrics.provider_request(f"op{number}", f"code{number}")
        metrics.created(GroupKey(TenantId(f"t{number}"), GroupName("g")), 1)
    metrics.created(GroupKey(TenantId("t0"), GroupName("g")), 1)
    found = samples(metrics)
    assert found["nstance_storage_requests_total{code=other,op=other}"] == len(known) + 47
    assert found["nstance_provider_requests_total{code=other,op=other}"] == len(known) + 47
    counts = {name: value for name, value in found.items() if name.startswith("nstance_create_seconds_count")}
    assert counts == {
        **{f"nstance_create_seconds_count{{group=g,tenant=t{n}}}": 1 + (n == 0) for n in known},
        "nstance_create_seconds_count{group=other,tenant=other}": 47,
    }


def test_every_error_code_of_a_port_is_a_label_value() -> None:
    for base, codes in ((StorageError, module.STORAGE_CODES), (ProviderError, module.PROVIDER_CODES)):
        assert {kind.code for kind in base.__subclasses__()} <= codes
