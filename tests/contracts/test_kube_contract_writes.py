"""The other half of the suite for every Kubernetes API server: what is changed, and what is asked for by a POST."""

import asyncio
import time
from contextlib import aclosing, suppress
from typing import Any

import pytest

from contracts import kube_worlds as worlds
from contracts.kube_worlds import DEADLINE, WIDGET, World, changes, summarize
from nstance.clock import SystemClock, SystemRng
from nstance.kube import errors, kinds
from nstance.kube.api.patches import Patch
from nstance.kube.events import Recorder
from nstance.kube.lease import Election, LeaseTimes
from nstance.kube.port import Object, Selection
from support import kube_verbs
from support.eventually import eventually
from support.kube_verbs import Target

CONFIG_MAP, POD = kinds.CONFIG_MAP, kinds.POD
NOWHERE = kinds.Kind("contract.nstance.dev", "v1", "Nothing", "nothings")
world = worlds.world


# ---- create


async def test_create_fills_in_what_the_server_knows(world: World) -> None:
    made = await world.kube.create(WIDGET, world.widget("a", size=1))
    metadata = made["metadata"]
    assert metadata["uid"]
    assert metadata["resourceVersion"]
    assert metadata["creationTimestamp"].endswith("Z")
    assert metadata["generation"] == 1
    again = await world.kube.create(WIDGET, {"metadata": {"generateName": "b-"}}, namespace=world.namespace)
    assert again["metadata"]["name"].startswith("b-")
    assert len(again["metadata"]["name"]) > 2
    assert again["metadata"]["namespace"] == world.namespace
    assert again["metadata"]["uid"] != metadata["uid"]


async def test_create_of_what_exists(world: World) -> None:
    await world.kube.create(CONFIG_MAP, world.config_map("a", key="first"))
    with pytest.raises(errors.AlreadyExistsError):
        await world.kube.create(CONFIG_MAP, world.config_map("a", key="second"))
    assert (await world.kube.get(CONFIG_MAP, "a", namespace=world.namespace))["data"] == {"key": "first"}


async def test_one_of_many_creates_wins(world: World) -> None:
    outcomes = await asyncio.gather(
        *(world.kube.create(CONFIG_MAP, world.config_map("a", n=str(n))) for n in range(10)), return_exceptions=True
    )
    won = [outcome for outcome in outcomes if isinstance(outcome, dict)]
    assert len(won) == 1
    assert all(isinstance(outcome, dict | errors.AlreadyExistsError) for outcome in outcomes)
    assert await world.kube.get(CONFIG_MAP, "a", namespace=world.namespace) == won[0]


async def test_create_of_what_breaks_the_rules(world: World) -> None:
    with pytest.raises(errors.InvalidError) as caught:
        await world.kube.create(WIDGET, world.widget("a", size=-1, color="blue"))
    assert "size" in str(caught.value)
    assert "color" in str(caught.value), "all causes are in the message"
    for body in (
        {"metadata": {"namespace": world.namespace}},  # no name
        {"metadata": {"name": "Not A Name", "namespace": world.namespace}},
        {"metadata": {"name": "no-namespace"}},
    ):
        with pytest.raises(errors.InvalidError):
            await world.kube.create(CONFIG_MAP, body)
    with pytest.raises(errors.NotFoundError):
        await world.kube.create(CONFIG_MAP, {"metadata": {"name": "a", "namespace": "no-such-namespace"}})
    with pytest.raises(errors.NotFoundError):
        await world.kube.create(NOWHERE, world.widget("a"))


# ---- replace


async def test_replace_writes_over_the_version_it_read(world: World) -> None:
    made = await world.kube.create(WIDGET, world.widget("a", size=1))
    changed = await world.kube.replace(WIDGET, {**made, "spec": {"size": 2}})
    assert changed["spec"] == {"size": 2}
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]
    assert changed["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
    assert changed["metadata"]["generation"] == 2
    with pytest.raises(errors.ConflictError):
        await world.kube.replace(WIDGET, {**made, "spec": {"size": 3}})
    assert await world.kube.get(WIDGET, "a", namespace=world.namespace) == changed


async def test_replace_demands_a_version(world: World) -> None:
    for kind, body in ((WIDGET, world.widget("a")), (CONFIG_MAP, world.config_map("a"))):
        await world.kube.create(kind, body)
        with pytest.raises(errors.InvalidError):
            await world.kube.replace(kind, body)


async def test_replace_of_what_is_gone_or_another(world: World) -> None:
    made = await world.kube.create(WIDGET, world.widget("a"))
    await world.kube.delete(WIDGET, "a", namespace=world.namespace)
    with pytest.raises(errors.NotFoundError):
        await world.kube.replace(WIDGET, made)
    await world.kube.create(WIDGET, world.widget("a"))
    with pytest.raises(errors.ConflictError):
        await world.kube.replace(WIDGET, made)


async def test_replace_of_what_breaks_the_rules(world: World) -> None:
    made = await world.kube.create(WIDGET, world.widget("a", size=1))
    with pytest.raises(errors.InvalidError, match="size"):
        await world.kube.replace(WIDGET, {**made, "spec": {"size": -1}})
    assert await world.kube.get(WIDGET, "a", namespace=world.namespace) == made


async def test_status_and_spec_are_written_apart(world: World) -> None:
    made = await world.kube.create(WIDGET, {**world.widget("a", size=1), "status": {"phase": "ignored"}})
    assert "status" not in made or not made["status"]
    body = {**made, "spec": {"size": 9}, "status": {"phase": "up"}}
    changed = await kube_verbs.replace_status(world.kube, WIDGET, body)
    assert (changed["spec"], changed["status"]) == ({"size": 1}, {"phase": "up"})
    assert changed["metadata"]["generation"] == 1, "a status is not a new spec"
    changed = await world.kube.replace(WIDGET, {**changed, "spec": {"size": 2}, "status": {"phase": "ignored"}})
    assert (changed["spec"], changed["status"]) == ({"size": 2}, {"phase": "up"})
    with pytest.raises(errors.ConflictError):
        await kube_verbs.replace_status(world.kube, WIDGET, body)


async def test_a_write_that_changes_nothing_is_no_change(world: World) -> None:
    made = await world.kube.create(WIDGET, world.widget("a", size=1))
    same = await world.kube.patch(WIDGET, "a", {"spec": {"size": 1}}, namespace=world.namespace)
    assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


# ---- patch


async def test_merge_patch(world: World) -> None:
    await world.kube.create(WIDGET, world.widget("a", size=1, color="red", names=["x", "y"]))
    body = {"spec": {"color": None, "names": ["z"]}, "metadata": {"annotations": {"k": "v"}}}
    changed = await world.kube.patch(WIDGET, "a", body, namespace=world.namespace)
    assert changed["spec"] == {"size": 1, "names": ["z"]}
    assert changed["metadata"]["annotations"] == {"k": "v"}


async def test_a_version_makes_a_merge_patch_conditional(world: World) -> None:
    made = await world.kube.create(WIDGET, world.widget("a", size=1))
    version = {"resourceVersion": made["metadata"]["resourceVersion"]}
    await world.kube.patch(WIDGET, "a", {"metadata": version, "spec": {"size": 2}}, namespace=world.namespace)
    with pytest.raises(errors.ConflictError):
        await world.kube.patch(WIDGET, "a", {"metadata": version, "spec": {"size": 3}}, namespace=world.namespace)
    assert (await world.kube.get(WIDGET, "a", namespace=world.namespace))["spec"] == {"size": 2}


async def test_json_patch(world: World) -> None:
    await world.kube.create(WIDGET, world.widget("a", size=1, names=["x"]))
    operations: list[Object] = [
        {"op": "test", "path": "/spec/size", "value": 1},
        {"op": "replace", "path": "/spec/size", "value": 2},
        {"op": "add", "path": "/spec/names/-", "value": "y"},
    ]
    widget = Target(WIDGET, "a", world.namespace)
    changed = await kube_verbs.patch(world.kube, widget, operations, how=Patch.JSON)
    assert changed["spec"] == {"size": 2, "names": ["x", "y"]}
    for wrong in (operations, [{"op": "remove", "path": "/spec/missing"}]):
        with pytest.raises(errors.InvalidError):
            await kube_verbs.patch(world.kube, widget, wrong, how=Patch.JSON)
    assert await world.kube.get(WIDGET, "a", namespace=world.namespace) == changed


async def test_strategic_patch_merges_lists_by_their_keys(world: World) -> None:
    await world.kube.create(POD, world.pod("a"))
    pod_status = Target(POD, "a", world.namespace, "status")
    body = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await kube_verbs.patch(world.kube, pod_status, body, how=Patch.STRATEGIC)
    body = {"status": {"conditions": [{"type": "Other", "status": "False"}]}}
    changed = await kube_verbs.patch(world.kube, pod_status, body, how=Patch.STRATEGIC)
    found = {condition["type"]: condition["status"] for condition in changed["status"]["conditions"]}
    assert {"Ready": "True", "Other": "False"}.items() <= found.items()
    await world.kube.create(WIDGET, world.widget("a"))
    with pytest.raises(errors.InvalidError):
        await kube_verbs.patch(world.kube, Target(WIDGET, "a", world.namespace), {}, how=Patch.STRATEGIC)


async def test_apply_makes_and_changes(world: World) -> None:
    body = {"metadata": {"name": "a"}, "spec": {"size": 1}}
    widget = Target(WIDGET, "a", world.namespace)
    options: dict[str, Any] = {"how": Patch.APPLY, "by": "contract"}
    made = await kube_verbs.patch(world.kube, widget, body, **options)
    assert made["spec"] == {"size": 1}
    changed = await kube_verbs.patch(world.kube, widget, {**body, "spec": {"size": 2}}, **options)
    assert changed["spec"] == {"size": 2}
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]
    # Somebody else's field is taken over: two owners must not stop each other.
    await world.kube.patch(WIDGET, "a", {"spec": {"size": 7}}, namespace=world.namespace)
    changed = await kube_verbs.patch(world.kube, widget, body, **options)
    assert changed["spec"] == {"size": 1}


async def test_patch_of_a_status(world: World) -> None:
    await world.kube.create(WIDGET, world.widget("a", size=1))
    body = {"spec": {"size": 9}, "status": {"phase": "up"}}
    changed = await world.kube.patch(WIDGET, "a", body, namespace=world.namespace, subresource="status")
    assert (changed["spec"], changed["status"]) == ({"size": 1}, {"phase": "up"})
    changed = await world.kube.patch(WIDGET, "a", {"status": {"phase": "ignored"}}, namespace=world.namespace)
    assert changed["status"] == {"phase": "up"}


async def test_patch_of_a_scale(world: World) -> None:
    await world.kube.create(WIDGET, world.widget("a", replicas=1))
    body = {"spec": {"replicas": 5}}
    scale = await world.kube.patch(WIDGET, "a", body, namespace=world.namespace, subresource="scale")
    assert (scale["kind"], scale["spec"]["replicas"]) == ("Scale", 5)
    widget = await world.kube.get(WIDGET, "a", namespace=world.namespace)
    assert (widget["spec"], widget["metadata"]["generation"]) == ({"replicas": 5}, 2)


async def test_patch_of_what_is_not_there_or_breaks_the_rules(world: World) -> None:
    with pytest.raises(errors.NotFoundError):
        await world.kube.patch(WIDGET, "missing", {"spec": {}}, namespace=world.namespace)
    await world.kube.create(WIDGET, world.widget("a"))
    with pytest.raises(errors.InvalidError):
        await world.kube.patch(WIDGET, "a", {"spec": {"size": -1}}, namespace=world.namespace)
    with pytest.raises(errors.NotFoundError):
        await world.kube.patch(CONFIG_MAP, "a", {}, namespace=world.namespace, subresource="scale")


# ---- delete


async def test_delete(world: World) -> None:
    await world.kube.create(CONFIG_MAP, world.config_map("a"))
    await world.kube.delete(CONFIG_MAP, "a", namespace=world.namespace)
    with pytest.raises(errors.NotFoundError):
        await world.kube.get(CONFIG_MAP, "a", namespace=world.namespace)
    with pytest.raises(errors.NotFoundError):
        await world.kube.delete(CONFIG_MAP, "a", namespace=world.namespace)


async def test_an_empty_name_deletes_nothing(world: World) -> None:
    await world.kube.create(CONFIG_MAP, world.config_map("a"))
    with pytest.raises((errors.InvalidError, errors.NotFoundError)):
        await world.kube.delete(CONFIG_MAP, "", namespace=world.namespace)
    await world.kube.get(CONFIG_MAP, "a", namespace=world.namespace)


async def test_delete_of_the_one_that_was_meant(world: World) -> None:
    old = await world.kube.create(CONFIG_MAP, world.config_map("a"))
    await world.kube.delete(CONFIG_MAP, "a", namespace=world.namespace, uid=old["metadata"]["uid"])
    new = await world.kube.create(CONFIG_MAP, world.config_map("a"))
    with pytest.raises(errors.ConflictError):
        await world.kube.delete(CONFIG_MAP, "a", namespace=world.namespace, uid=old["metadata"]["uid"])
    changed = await world.kube.patch(CONFIG_MAP, "a", {"data": {"k": "v"}}, namespace=world.namespace)
    with pytest.raises(errors.ConflictError):
        await kube_verbs.delete(
            world.kube, CONFIG_MAP, "a", namespace=world.namespace, version=new["metadata"]["resourceVersion"]
        )
    version = changed["metadata"]["resourceVersion"]
    await kube_verbs.delete(world.kube, CONFIG_MAP, "a", namespace=world.namespace, version=version)


async def test_finalizers_hold_a_deleted_object(world: World) -> None:
    body = world.widget("a")
    body["metadata"]["finalizers"] = ["nstance.dev/contract"]
    made = await world.kube.create(WIDGET, body)
    await world.kube.delete(WIDGET, "a", namespace=world.namespace)
    held = await world.kube.get(WIDGET, "a", namespace=world.namespace)
    assert held["metadata"]["deletionTimestamp"]
    assert held["metadata"]["uid"] == made["metadata"]["uid"]
    await world.kube.delete(WIDGET, "a", namespace=world.namespace)  # again changes nothing
    with pytest.raises(errors.AlreadyExistsError):
        await world.kube.create(WIDGET, world.widget("a"))
    with pytest.raises(errors.InvalidError):  # no new finalizers on what goes
        await world.kube.patch(
            WIDGET,
            "a",
            {"metadata": {"finalizers": ["nstance.dev/contract", "nstance.dev/more"]}},
            namespace=world.namespace,
        )
    watch = world.kube.watch(Selection(WIDGET, world.namespace), version=held["metadata"]["resourceVersion"])
    async with aclosing(watch):  # type: ignore[type-var]
        await world.kube.patch(WIDGET, "a", {"metadata": {"finalizers": []}}, namespace=world.namespace)
        assert summarize(await changes(watch, 1)) == [("DELETED", "a")]
    with pytest.raises(errors.NotFoundError):
        await world.kube.get(WIDGET, "a", namespace=world.namespace)


@pytest.mark.parametrize("foreground", [False, True])
async def test_what_lost_its_owner_goes(world: World, foreground: bool) -> None:
    if not world.collects:
        pytest.skip("nobody collects garbage at an API server alone")
    owner = await world.kube.create(WIDGET, world.widget("owner"))
    reference = {
        "apiVersion": WIDGET.api_version,
        "kind": WIDGET.name,
        "name": "owner",
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": True,
    }
    body = world.config_map("owned")
    body["metadata"]["ownerReferences"] = [reference]
    await world.kube.create(CONFIG_MAP, body)
    await kube_verbs.delete(world.kube, WIDGET, "owner", namespace=world.namespace, foreground=foreground)

    async def gone() -> bool:
        found = await world.kube.list(CONFIG_MAP, namespace=world.namespace, fields="metadata.name=owned")
        return not found.items and not (await world.kube.list(WIDGET, namespace=world.namespace)).items

    await eventually(gone)


async def test_foreground_deletion_waits_for_what_is_owned(world: World) -> None:
    owner = await world.kube.create(WIDGET, world.widget("owner"))
    body = world.config_map("owned")
    body["metadata"]["finalizers"] = ["nstance.dev/contract"]
    body["metadata"]["ownerReferences"] = [
        {
            "apiVersion": WIDGET.api_version,
            "kind": WIDGET.name,
            "name": "owner",
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": True,
        }
    ]
    await world.kube.create(CONFIG_MAP, body)
    await kube_verbs.delete(world.kube, WIDGET, "owner", namespace=world.namespace, foreground=True)
    held = await world.kube.get(WIDGET, "owner", namespace=world.namespace)
    assert held["metadata"]["deletionTimestamp"]
    await world.kube.patch(CONFIG_MAP, "owned", {"metadata": {"finalizers": []}}, namespace=world.namespace)
    if not world.collects:  # at a real API server somebody may, as soon as it knows this kind
        with suppress(errors.NotFoundError):
            await world.kube.patch(WIDGET, "owner", {"metadata": {"finalizers": []}}, namespace=world.namespace)

    async def gone() -> bool:
        return not (await world.kube.list(WIDGET, namespace=world.namespace)).items

    await eventually(gone)


# ---- evict


async def running_pod(world: World, name: str) -> Object:
    await world.kube.create(POD, world.pod(name, {"app": "guarded"}))
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    target = Target(POD, name, world.namespace, "status")
    return await kube_verbs.patch(world.kube, target, {"status": status}, how=Patch.STRATEGIC)


async def test_evict(world: World) -> None:
    pod = await running_pod(world, "a")
    await world.kube.evict("a", namespace=world.namespace, uid=pod["metadata"]["uid"])

    async def gone() -> bool:
        return not (await world.kube.list(POD, namespace=world.namespace)).items

    await eventually(gone)
    with pytest.raises(errors.NotFoundError):
        await world.kube.evict("a", namespace=world.namespace)


async def test_evict_of_another_pod_of_that_name(world: World) -> None:
    old = await running_pod(world, "a")
    await world.kube.delete(POD, "a", namespace=world.namespace)
    await running_pod(world, "a")
    with pytest.raises(errors.ConflictError):
        await world.kube.evict("a", namespace=world.namespace, uid=old["metadata"]["uid"])
    await world.kube.get(POD, "a", namespace=world.namespace)


async def test_evict_that_a_budget_refuses(world: World) -> None:
    await running_pod(world, "a")
    budget = {
        "metadata": {"name": "guard", "namespace": world.namespace},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    }
    await world.kube.create(kinds.POD_DISRUPTION_BUDGET, budget)
    with pytest.raises(errors.ThrottledError) as caught:
        await world.kube.evict("a", namespace=world.namespace)
    assert caught.value.delay >= 0
    assert "guard" in str(caught.value)
    await world.kube.get(POD, "a", namespace=world.namespace)
    await world.kube.delete(kinds.POD_DISRUPTION_BUDGET, "guard", namespace=world.namespace)
    await world.kube.evict("a", namespace=world.namespace)


# ---- tokens and leases


async def test_request_token(world: World) -> None:
    began = time.time()
    token = await world.kube.request_token("robot", namespace=world.namespace, seconds=3600)
    assert token.value.count(".") == 2
    assert began + 3590 <= token.expires <= time.time() + 3610
    assert token.value not in repr(token)
    with pytest.raises(errors.NotFoundError):
        await world.kube.request_token("missing", namespace=world.namespace, seconds=3600)
    with pytest.raises(errors.InvalidError):
        await world.kube.request_token("robot", namespace=world.namespace, seconds=1)


async def test_a_lease_is_taken_kept_and_released(world: World) -> None:
    """As `kube.lease` writes it, an API server takes it."""

    def candidate(identity: str) -> Election:
        return Election(
            world.kube,
            namespace=world.namespace,
            identity=identity,
            clock=SystemClock(),
            rng=SystemRng(),
            times=LeaseTimes(renew=0.05, retry=0.05),
        )

    one, two = candidate("one"), candidate("two")
    async with asyncio.timeout(DEADLINE):
        await one.acquire()
        waiting = asyncio.ensure_future(two.acquire())
        keeping = asyncio.ensure_future(one.renew())

        async def renewed() -> bool:
            lease = await world.kube.get(kinds.LEASE, "nstance-operator-leader-election", namespace=world.namespace)
            spec = lease["spec"]
            return bool(spec["renewTime"] > spec["acquireTime"])

        await eventually(renewed)
        assert not waiting.done()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await one.release()
        await waiting
    lease = await world.kube.get(kinds.LEASE, "nstance-operator-leader-election", namespace=world.namespace)
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("two", 1)


async def test_events_are_taken(world: World) -> None:
    pod = await world.kube.create(POD, world.pod("a"))
    recorder = Recorder(world.kube, clock=SystemClock(), rng=SystemRng(), instance="contract")
    running = asyncio.ensure_future(recorder.run())
    try:
        recorder.note(pod, "Tested", "by the contract")

        async def counted(times: int) -> bool:
            found = (await world.kube.list(kinds.EVENT, namespace=world.namespace, fields="reason=Tested")).items
            return [event["count"] for event in found] == [times]

        await eventually(lambda: counted(1))
        recorder.note(pod, "Tested", "by the contract")
        await eventually(lambda: counted(2))
        assert recorder.dropped == 0
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
