"""The Kubernetes Node of a tmux instance: a JSON file that dev-k8s serves."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from nstance.model.ids import InstanceId, ProviderId
from nstance.providers import instance_dirs, port


def node(record: instance_dirs.Record, vm: port.Vm) -> dict[str, object]:
    since = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    size = {"cpu": "2", "memory": "4Gi", "pods": "110"}
    labels = {
        "kubernetes.io/hostname": record.id,
        "kubernetes.io/os": "linux",
        "nstance.dev/instance-id": record.id,
        "nstance.dev/cluster": record.cluster,
        "nstance.dev/shard": record.shard,
        "nstance.dev/tenant": record.tenant,
        "nstance.dev/group": record.group,
    }
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "AgentStarted",
        "message": "the agent runs in a tmux window",
        "lastHeartbeatTime": since,
        "lastTransitionTime": since,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": record.id, "labels": labels, "creationTimestamp": since},
        "spec": {"providerID": vm.provider_id},
        "status": {
            "conditions": [ready],
            "addresses": [
                {"type": "InternalIP", "address": vm.ip4},
                {"type": "Hostname", "address": vm.hostname},
            ],
            "capacity": size,
            "allocatable": size,
        },
    }


class Nodes:
    """The folder `nodes` of dev-k8s. A file appears complete or not at all."""

    def __init__(self, dev_k8s_dir: Path) -> None:
        self._folder = dev_k8s_dir / "nodes"

    def add(self, record: instance_dirs.Record, vm: port.Vm) -> None:
        """Write the file unless it exists: others may have changed it (for example a cordon)."""
        path = self._path(record.id)
        if path.exists():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._folder / f".{record.id}.{os.getpid()}"
        temporary.write_text(json.dumps(node(record, vm), indent=2) + "\n")
        temporary.replace(path)

    def remove(self, id: InstanceId, provider_id: ProviderId) -> None:
        """Remove the file, unless it belongs to another provider ID."""
        path = self._path(id)
        try:
            value = json.loads(path.read_bytes())
        except FileNotFoundError:
            return
        except ValueError:
            value = None  # damaged: its name still says whose it is
        if value is None or value.get("spec", {}).get("providerID") == provider_id:
            path.unlink(missing_ok=True)

    def _path(self, id: InstanceId) -> Path:
        return self._folder / f"{id}.json"
