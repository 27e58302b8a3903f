"""The Terraform modules against a stand-in for AWS: what they make is what a server needs. `make test-terraform` runs it."""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from nstance.clock import SystemClock
from nstance.config import addresses
from nstance.dev import child
from nstance.dev.aws import box
from nstance.dev.aws.hypervisor import Hypervisor
from nstance.dev.aws.moto import AMI, ARM_AMI, MissingError, Moto, opened
from nstance.dev.aws.stand_in import StandIn
from nstance.dev.sandbox.sandbox import Sandbox
from support.eventually import eventually
from support.ports import free_port

__all__ = ["free_port"]

MODULES = Path(os.environ.get("NSTANCE_TEST_TERRAFORM", "/nonexistent"))
TERRAFORM = os.environ.get("NSTANCE_TERRAFORM", "terraform")
ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "none")
DIST = Path(__file__).parents[2] / "dist"
SERVER, AGENT = (DIST / f"nstance-{name}-linux-{ARCH}.tar.gz" for name in ("server", "agent"))
REGION, SHARD, BUCKET = "us-east-1", "us-east-1a", "minimal-state"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": REGION}

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not MODULES.is_dir(), reason="needs Terraform (make test-terraform)"),
]


@dataclass
class Cloud:
    moto: Moto
    stand_in: StandIn

    def client(self, service: str) -> Any:
        return boto3.client(
            service, endpoint_url=self.moto.url, region_name=REGION, aws_access_key_id="t", aws_secret_access_key="t"
        )

    async def terraform(self, folder: str, *arguments: str) -> str:
        """Against moto itself, except for buckets: the stand-in is strict about instances and correct about buckets."""
        environment = {**os.environ, **CREDENTIALS, "AWS_ENDPOINT_URL": self.moto.url, "AWS_S3_USE_PATH_STYLE": "true"}
        environment["AWS_ENDPOINT_URL_S3"] = self.stand_in.url
        programs = os.path.dirname(sys.executable)  # nstance-server checks the configuration
        environment["PATH"] = f"{programs}:{os.environ['PATH']}"
        return await _run(TERRAFORM, f"-chdir={MODULES / folder}", *arguments, environment=environment)


async def _run(*command: str, environment: Mapping[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, output[-4000:]
    return output


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with contextlib.AsyncExitStack() as stack:
        try:
            moto = await stack.enter_async_context(opened(tmp_path))
        except MissingError as missing:
            pytest.skip(str(missing))
        stand_in = StandIn(moto, SystemClock())
        await stand_in.start()
        stack.push_async_callback(stand_in.close)
        yield Cloud(moto, stand_in)


@pytest.mark.parametrize("module", ["cluster", "shard"])
async def test_the_modules_own_tests_pass(cloud: Cloud, module: str) -> None:
    output = await cloud.terraform(module, "test", "-no-color")
    assert "Success! 4 passed, 0 failed." in output


@pytest.mark.skipif(not SERVER.exists() or not AGENT.exists(), reason="needs make server-bundle agent-bundle")
async def test_a_server_boots_from_what_was_applied_and_brings_up_its_group(
    cloud: Cloud, free_port: int, tmp_path: Path
) -> None:
    ports = {service: free_port + number for number, service in enumerate(addresses.Service)}
    async with contextlib.AsyncExitStack() as stack:
        files = await stack.enter_async_context(box.serve_files({"/agent": AGENT, "/server": SERVER}))
        inputs = _inputs(cloud, files, ports)
        (MODULES / "examples/minimal/terraform.tfvars.json").write_text(json.dumps(inputs))
        await cloud.terraform("examples/minimal", "apply", "-auto-approve", "-input=false", "-no-color")

        userdata = _applied_userdata(cloud)
        assert len(userdata) < 16 * 1024
        hypervisor = Hypervisor(cloud.stand_in, tmp_path / "vms", clock=SystemClock(), environment={})
        running = asyncio.create_task(hypervisor.run())
        # The credentials of the machine's role come from its metadata, as on EC2.
        environment = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": cloud.stand_in.metadata_url(_server_instance(cloud))}
        server = Sandbox(tmp_path / "server", hostname="server", environment={**environment, **CREDENTIALS})
        try:
            await server.boot(userdata)
            await eventually(lambda: len(_registered(server)) == 3, seconds=300)
            assert len(hypervisor.running) == 3
            # Terraform does not know the instances: they go first.
            await _drain_all(cloud, tmp_path / "identity", ports[addresses.Service.OPERATOR])
            await eventually(lambda: not hypervisor.running)
        except AssertionError:
            raise AssertionError(f"{server.console[-2000:]}\n{_log(server)[-4000:]}") from None
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await server.stop()
            _detach_leader_interface(cloud)
        await cloud.terraform("examples/minimal", "destroy", "-auto-approve", "-input=false", "-no-color")
    _assert_nothing_is_left(cloud)


def _inputs(cloud: Cloud, files: str, ports: dict[addresses.Service, int]) -> dict[str, Any]:
    advertised = (addresses.Service.REGISTRATION, addresses.Service.OPERATOR, addresses.Service.AGENT)
    return {
        "region": REGION,
        "bucket_name": BUCKET,
        "tls_only": False,
        "validate_config": True,
        "image_id": ARM_AMI,
        "server_ami_id": AMI,
        "server_package": {"url": f"{files}/server", "sha256": hashlib.sha256(SERVER.read_bytes()).hexdigest()},
        "agent": {"url": f"{files}/agent", "sha256": hashlib.sha256(AGENT.read_bytes()).hexdigest()},
        "environment": {"AWS_ENDPOINT_URL": cloud.stand_in.url},
        # Everything is on this machine, where the leader's address does not exist.
        "shard_settings": {
            "bind": {service.key: f"127.0.0.1:{port}" for service, port in ports.items()},
            "advertise": {service.key: f"127.0.0.1:{ports[service]}" for service in advertised},
        },
        "size": 3,
    }


async def _drain_all(cloud: Cloud, identity: Path, port: int) -> None:
    """As a person does it before `terraform destroy`, with the key that Terraform made."""
    key = cloud.client("secretsmanager").list_secrets()["SecretList"][0]["ARN"]
    environment = {**os.environ, **CREDENTIALS, "AWS_ENDPOINT_URL": cloud.stand_in.url}
    environment |= {"NSTANCE_ADMIN_IDENTITY_DIR": str(identity), "NSTANCE_ADMIN_OUTPUT_DIR": str(identity)}
    environment |= {"NSTANCE_ADMIN_KEY_PROVIDER": "aws-secrets-manager", "NSTANCE_ADMIN_KEY_SOURCE": key}
    environment |= {"NSTANCE_ADMIN_STORAGE_BUCKET": BUCKET, "NSTANCE_ADMIN_SERVERS": f"{SHARD}=127.0.0.1:{port}"}
    for command in (("register-operator",), ("drain-all", "--yes", "--within", "5m")):
        await _run(child.program_path("nstance-admin"), "cluster", *command, environment=environment)


def _detach_leader_interface(cloud: Cloud) -> None:
    """EC2 does this when it terminates the server. moto does not, and never confirms that of Terraform."""
    ec2 = cloud.client("ec2")
    for interface in ec2.describe_network_interfaces()["NetworkInterfaces"]:
        if interface.get("Description", "").startswith("Leader address") and interface.get("Attachment"):
            ec2.detach_network_interface(AttachmentId=interface["Attachment"]["AttachmentId"], Force=True)


def _applied_userdata(cloud: Cloud) -> bytes:
    versions = cloud.client("ec2").describe_launch_template_versions(
        LaunchTemplateName=f"nstance-example-{SHARD}", Versions=["$Latest"]
    )
    return base64.b64decode(versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]["UserData"])


def _server_instance(cloud: Cloud) -> str:
    groups = cloud.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    return str(groups[0]["Instances"][0]["InstanceId"])


def _log(server: Sandbox) -> str:
    return server.log("nstance-server.service")


def _registered(server: Sandbox) -> set[str]:
    return set(re.findall(r'"reason": ?"ready"[^\n]*?"instance": ?"([^"]+)"', _log(server)))


def _assert_nothing_is_left(cloud: Cloud) -> None:
    reservations = cloud.client("ec2").describe_instances()["Reservations"]
    states = {each["State"]["Name"] for one in reservations for each in one["Instances"]}
    assert states <= {"terminated"}
    assert cloud.client("s3").list_buckets()["Buckets"] == []
    assert cloud.client("secretsmanager").list_secrets()["SecretList"] == []
    assert cloud.client("iam").list_roles(PathPrefix="/")["Roles"] == []
    assert cloud.client("ec2").describe_launch_templates()["LaunchTemplates"] == []
