"""`make dev-tmux-k8s`: everything at once, and a person with kubectl, an editor and tmux."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nstance.dev import clean
from nstance.providers import tmux
from support import dev_tmux, ports
from support.dev_tmux import HONCHO, ROOT, windows
from support.eventually import wait_for

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "job", "annotations": {"on-demand.nstance.dev/group": "test"}},
    "spec": {"containers": [{"name": "main", "image": "none"}]},
}

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs the program kubectl"),
    *dev_tmux.NEEDS,
]
own_tmux = dev_tmux.own_tmux
free_port = ports.free_port


@pytest.mark.usefixtures("own_tmux")
def test_kubectl_an_editor_and_tmux_move_instances(tmp_path: Path, free_port: int) -> None:
    temp, output = tmp_path / "temp", tmp_path / "output"
    environment = {
        **os.environ,
        "NSTANCE_DEV_TEMP": str(temp),
        "NSTANCE_DEV_PORT": str(free_port),
        "NSTANCE_DEV_S3_PORT": str(free_port + 20),
        "NSTANCE_DEV_K8S_PORT": str(free_port + 21),
        "NSTANCE_DEV_PROBES": f"127.0.0.1:{free_port + 22}",
    }
    with output.open("wb") as out:
        honcho = subprocess.Popen(
            [HONCHO, "start", "-c", "server=2"], cwd=ROOT, env=environment, stdout=out, stderr=out
        )

    def kubectl(*words: str, given: str | None = None) -> str:
        command = ["kubectl", "--kubeconfig", str(temp / "operator/kubeconfig"), *words]
        done = subprocess.run(command, capture_output=True, text=True, input=given, check=False, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def names(kind: str) -> set[str]:
        return set(kubectl("get", kind, "-o", "name").split())

    def until(what: str, holds: Callable[[], bool]) -> None:
        def alive() -> bool:
            assert honcho.poll() is None, output.read_text()
            assert "Traceback" not in output.read_text(), output.read_text()
            return holds()

        wait_for(what, alive, seconds=180)

    def instances(count: int) -> Callable[[], bool]:
        return lambda: len(names("nodes")) == len(windows()) == count

    try:
        until("the operator's files", lambda: (temp / "dev-k8s/nstancemachinepools/default/nstance-test.json").exists())
        until("two instances per shard", instances(4))
        table = kubectl("get", "machinepools,nstancemachinepools,nstanceshardgroups,nodes")
        assert re.search(r"machinepool\S*/nstance-test +example-cluster--default +4 ", table)
        assert re.search(r"nstanceshardgroup\S*/test--dev-2 +test +dev-2 +2 ", table)
        for kept in ("nstance-operator-cert", "nstance-operator-key", "nstance-operator-nonce"):
            assert (temp / f"dev-k8s/secrets/default/{kept}.json").exists()
        assert (temp / "dev-k8s/configmaps/default/nstance-cluster-ca.json").exists()

        kubectl("scale", "machinepool", "nstance-test", "--replicas=5")
        until("five after a scale", instances(5))
        kubectl("scale", "machinepool", "nstance-test", "--replicas=2")
        until("two after a scale back, drained first", instances(2))
        assert "NodeDrained" in kubectl("get", "events")

        file = temp / "dev-k8s/machinepools/default/nstance-test.json"
        edited = json.loads(file.read_text())
        edited["spec"]["replicas"] = 3
        file.write_text(json.dumps(edited))
        until("three after an edit", instances(3))

        window = sorted(windows())[0]
        subprocess.run(["tmux", "kill-window", "-t", f"{tmux.SESSION}:{window}"], check=True)
        until("a replacement", lambda: window not in windows() and instances(3)())

        until("a Machine for each instance of the pool", lambda: len(names("machines")) == 3)
        of_pool = names("machines,nstancemachines")
        kubectl("apply", "-f", "-", given=json.dumps(POD))
        until("a node for the pod", instances(4))
        [machine] = names("machines") - of_pool
        kubectl(
            "wait",
            machine.replace("machine.cluster", "nstancemachine.infrastructure.cluster"),
            "--for=jsonpath={.status.ready}=true",
            "--timeout=180s",
        )
        kubectl("delete", "pod", "job")
        until("nothing left of it", lambda: instances(3)() and names("machines,nstancemachines") == of_pool)
    finally:
        honcho.send_signal(signal.SIGTERM)
        honcho.wait(60)
        clean.clean(temp)
