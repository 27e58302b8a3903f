"""The pages of the documentation, their blocks and commands, and which commands no test runs, with the reason.

A command stands in a block `sh` (as in a shell) or `console` (after a `$`). `runnable` gives the ones of a page that some
test must run; `RUN_BY` says which one does.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
LANGUAGES = {"sh", "console", "jsonc", "yaml", "text", "promql"}

# By page and by how the command begins. A reason for each: this is the only place where a command may escape.
NOT_RUN: Mapping[str, Mapping[str, str]] = {
    "README.md": {
        "make dev": "runs until Ctrl+C; test_dev_run.py runs what it starts",
        "make test": "is what runs this",
    },
    "getting-started.md": {
        "git clone": "needs the address of the repository",
        "cd nstance": "needs the clone",
        "make dev": "runs until Ctrl+C; test_dev_run.py runs what it starts",
    },
    "admin.md": {
        "nstance-admin cluster drain-all": "needs every shard of --servers; test_admin_drain_all.py empties two",
        "nstance-admin cluster revoke-operator": "needs shards there; test_admin_cluster_processes.py revokes at one",
        "nstance-admin serve --bind :8443": "needs a certificate; test_admin_shard_serve.py serves with one",
        'curl -H "Authorization': "needs a server with that name and certificate",
    },
    "top.md": {"nstance-admin": "needs a terminal; test_admin_top.py has one"},
    "dashboard.md": {
        "nstance-admin serve": "runs until Ctrl+C; make test-ui looks at it, test_http_api_docs.py serves it",
        "nstance-admin token create": "stands on access.md too",
    },
    "traces.md": {"export OTEL": "needs a collector there; test_traces.py has one on another port"},
    "access.md": {
        "nstance-admin serve": "needs a certificate; test_http_roles.py and test_http_logins.py serve this way",
    },
    "backup.md": {"nstance-admin": "needs a shard that is stopped and started again; test_backup_restore.py does that"},
    "readiness.md": {"nstance-admin": "needs a shard whose check fails; test_readiness.py has one"},
    "benchmarks.md": {
        "make bench": "takes minutes of quiet cores",
        ".venv/bin/python -m bench": "takes minutes of quiet cores",
    },
    "chaos.md": {
        "make chaos": "takes minutes and gigabytes; test_chaos_run.py runs a short one",
        ".venv/bin/python -m chaos": "takes minutes; test_chaos_run.py runs a short one",
        "make failovers": "takes minutes of quiet cores",
    },
    "dev-k8s.md": {
        "nstance-dev-k8s": "runs until Ctrl+C; test_dev_k8s_process.py starts it with these flags",
        "kubectl --server": "needs that one on its usual port; test_dev_k8s_kubectl.py uses kubectl on another",
    },
    "development.md": {
        "tmux attach": "takes over a terminal",
        "make nstance-admin": "writes bin/ into the checkout",
        "export KUBECONFIG": "needs make dev-tmux-k8s; test_dev_tmux_k8s.py uses the same kubeconfig",
        "kubectl": "needs make dev-tmux-k8s; test_dev_tmux_k8s.py does the same",
    },
    "gcp.md": {"nstance-server --shard": "needs a bucket at Google; test_gcs_servers.py runs servers on a stand-in"},
    "kind.md": {
        "make": "goes with a cluster of kind",
        "kind": "needs kind and containers",
        "mkdir": "goes with a cluster of kind",
        "kubectl": "needs a cluster of kind",
        "clusterctl": "needs a cluster of kind",
        "cat": "goes with a cluster of kind",
        "NONCE_JWT=": "goes with a cluster of kind; the same command stands on development.md",
    },
    "clusterctl.md": {
        "make clusterctl": "writes dist/ into the checkout; test_clusterctl.py builds the same elsewhere",
        "export": "goes with clusterctl init",
        "kubectl": "needs a management cluster",
        "clusterctl": "needs a management cluster; test_clusterctl.py generates provider and clusters",
    },
    "doctor.md": {"nstance-admin doctor": "needs a shard and a bucket; test_admin_doctor.py has both"},
    "aws-three-zones.md": {
        "make install": "takes minutes; make test-terraform builds the same bundles",
        "sha256sum": "needs the bundles",
        "terraform": "needs an account; make test-terraform applies and destroys an example at a stand-in",
        "aws s3 cp": "needs an account",
        "export": "goes with the next commands",
        "nstance-admin": "needs these shards; make test-terraform registers and drains one",
    },
    "secrets.md": {"aws kms": "needs AWS; test_aws_secrets.py makes such a key with moto"},
    "hybrid.md": {
        "kubectl": "needs a cluster with the operator; test_hybrid.py scales such a pool",
        "make test-hybrid": "takes minutes and installs stand-ins",
        "nstance-server": "needs the bucket; test_hybrid_processes.py starts one of each shard",
    },
    "load-balancers.md": {"jq": "needs jq and nginx; test_load_balancers.py reads such a file"},
    "qemu.md": {
        "make vm-image": "takes minutes and needs mmdebstrap; make test-vm runs it",
        "make dev-vm": "runs until Ctrl+C; test_dev_vm.py runs what it starts",
        "python -m nstance.providers.qemu.save_state": "test_provider_qemu.py saves a state",
    },
    "operator.md": {
        "kubectl": "needs a cluster with the operator; make test-kube runs its tests against a real API server",
        "helm": "needs a cluster; test_helm_install.py installs and upgrades the charts at dev-k8s",
    },
}

# Which test runs the other commands of a page.
RUN_BY: Mapping[str, tuple[str, ...]] = {
    "getting-started.md": ("e2e/test_dev_run.py", "e2e/test_docs_pages.py"),
    "admin.md": ("component/test_admin_shard_docs.py", "component/test_admin_bucket_docs.py"),
    "http-api.md": ("component/test_http_api_docs.py",),
    "access.md": ("component/test_access_docs.py",),
    "configuration.md": ("component/test_docs_commands.py",),
    "forecast.md": ("component/test_docs_commands.py",),
    "operator.md": ("component/test_docs_commands.py",),
    "load-balancers.md": ("component/test_docs_commands.py",),
    "aws.md": ("component/test_docs_commands.py",),
    "gcp.md": ("component/test_docs_commands.py",),
    "images-and-userdata.md": ("component/test_docs_commands.py",),
    "development.md": ("e2e/test_dev_tmux.py",),
    "costs.md": ("component/test_feature_docs.py",),
    **dict.fromkeys(
        ("draining.md", "expiry.md", "rotation.md", "healing.md", "capacity.md"),
        ("e2e/test_docs_pages.py",),
    ),
}


def blocks(page: str, *languages: str) -> list[str]:
    """Of these languages, in their order, as they would be without the indentation of a list."""
    found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", PAGES[page].read_text(), re.DOTALL | re.MULTILINE)
    return [re.sub(f"^{indent}", "", text, flags=re.MULTILINE) for indent, kind, text in found if kind in languages]


def commands(page: str) -> list[str]:
    """One entry for each, with the lines that belong to it, and without comments."""
    found: list[str] = []
    ends = ""  # of a here-document
    for block in blocks(page, "sh", "console"):
        going_on = False
        for line in block.splitlines():
            if ends or going_on:
                found[-1] += f"\n{line}"
            elif line.strip():
                found.append(re.sub(r"\s+# .*$", "", line.removeprefix("$ ")))
            going_on = line.endswith("\\")
            if ends:
                ends = "" if line == ends else ends
            elif here := re.search(r"<< *'?(\w+)'?", line):
                ends = here[1]
    return found


def reason(page: str, command: str) -> str | None:
    """Why no test runs it; None if one does."""
    return next((why for begins, why in NOT_RUN.get(page, {}).items() if command.startswith(begins)), None)


def runnable(page: str) -> list[str]:
    return [command for command in commands(page) if reason(page, command) is None]


def environment(**more: str) -> dict[str, str]:
    """A person's, with our programs in the path and no settings of ours."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NSTANCE_", "AWS_"))}
    clean["XDG_CONFIG_HOME"] = os.devnull  # no contexts
    return clean | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | more
