"""Which permissions a call needs, by AWS's service authorization reference: of the calls that Nstance makes.

Any other call needs the permission of its own name, on every resource.
"""

import json
import re
import urllib.parse
from collections.abc import Iterator, Sequence

from nstance.dev.aws import xml
from nstance.dev.aws.books import Params
from nstance.dev.aws.moto import Moto, Refusal, signed
from nstance.dev.aws.stand_in import Call
from support.aws_policies import Need, Policy

ACCOUNT = "123456789012"  # moto's
_FREE = ("sts:GetCallerIdentity",)
_CREATED = ("instance", "volume", "network-interface")
_ON_TAGGED = {  # parameters that name the resources, which the policy knows by their tags
    "TerminateInstances": ("InstanceId",),
    "GetConsoleOutput": ("InstanceId",),
    "AssignPrivateIpAddresses": ("NetworkInterfaceId",),
    "UnassignPrivateIpAddresses": ("NetworkInterfaceId",),
    "AssignIpv6Addresses": ("NetworkInterfaceId",),
    "UnassignIpv6Addresses": ("NetworkInterfaceId",),
    "AttachNetworkInterface": ("NetworkInterfaceId", "InstanceId"),
}
_KINDS = {"i": "instance", "eni": "network-interface"}  # by the beginning of an ID
_S3 = {"GET": "GetObject", "HEAD": "GetObject", "PUT": "PutObject", "POST": "PutObject", "DELETE": "DeleteObject"}
_REFUSALS = {
    "ec2": ("UnauthorizedOperation", 403),
    "elasticloadbalancing": ("AccessDenied", 403),
    "s3": ("AccessDenied", 403),
}


class Permissions:
    """A `stand_in.Gate`: every caller has this policy."""

    def __init__(self, policy: Policy, moto: Moto) -> None:
        self._policy = policy
        self._moto = moto

    async def check(self, call: Call) -> None:
        for need in await self._needs(call):
            if need.action in _FREE or self._policy.allows(need):
                continue
            code, status = _REFUSALS.get(call.service, ("AccessDeniedException", 400))
            if need.action == "kms:Decrypt" and call.service != "kms":
                raise Refusal(code, "Access to KMS is not allowed", status)
            who = f"User: arn:aws:sts::{ACCOUNT}:assumed-role/nstance-server/stand-in is not authorized to perform:"
            why = f"because no identity-based policy allows the {need.action} action"
            raise Refusal(code, f"{who} {need.action} on resource: {need.resource} {why}", status)

    def check_missing(self, call: Call, status: int) -> None:
        """S3 says that an object is missing only to those who may list its key."""
        bucket, _, key = call.path.lstrip("/").partition("/")
        is_missing = call.service == "s3" and status == 404 and call.method in ("GET", "HEAD")
        if is_missing and not self._policy.allows(Need("s3:ListBucket", f"arn:aws:s3:::{bucket}", {"s3:prefix": key})):
            raise Refusal("AccessDenied", "User is not authorized to perform: s3:ListBucket", 403)

    async def _needs(self, call: Call) -> list[Need]:
        match call.service, call.action:
            case "s3", _:
                return [_s3(call)]
            case "ec2", "RunInstances":
                return [*self._launch(call.params), *await self._pass_role(call.params)]
            case "ec2", "DetachNetworkInterface":
                return await self._detach(call.params.get("AttachmentId", ""))
            case "ec2", action if action in _ON_TAGGED:
                named = [_values(call.params, name) for name in _ON_TAGGED[action]]
                return [await self._tagged(action, id) for ids in named for id in ids]
            case "secretsmanager", "GetSecretValue":
                return await self._secret(str(call.json.get("SecretId")))
            case "ssm", "GetParameter":
                return [self._parameter(str(call.json.get("Name")))]
            case "logs", action:
                group = f"log-group:{call.json.get('logGroupName')}:*"
                return [Need(f"logs:{action}", f"arn:aws:logs:{self._moto.region}:{ACCOUNT}:{group}")]
            case "elasticloadbalancing", "RegisterTargets" | "DeregisterTargets":
                return [Need(f"elasticloadbalancing:{call.action}", call.params.get("TargetGroupArn", ""))]
            case _:
                return [Need(f"{call.service}:{call.action}")]

    def _ec2(self, kind: str, id: str, account: str = ACCOUNT) -> str:
        return f"arn:aws:ec2:{self._moto.region}:{account}:{kind}/{id}"

    def _launch(self, params: Params) -> Iterator[Need]:
        """RunInstances is allowed for everything that it creates and for everything that it uses."""
        tags = _request_tags(params)
        for kind in _CREATED:
            context = {f"aws:RequestTag/{key}": value for key, value in tags.get(kind, {}).items()}
            yield Need("ec2:RunInstances", self._ec2(kind, "*"), context)
            if kind in tags:
                creates = {**context, "ec2:CreateAction": "RunInstances"}
                yield Need("ec2:CreateTags", self._ec2(kind, "*"), creates)
        yield Need("ec2:RunInstances", self._ec2("image", params.get("ImageId", ""), account=""))
        subnets = _values(params, "SubnetId") or _values(params, "NetworkInterface.1.SubnetId")
        groups = _values(params, "SecurityGroupId") or _values(params, "NetworkInterface.1.SecurityGroupId")
        for kind, ids in (("subnet", subnets), ("security-group", groups or ["default"])):
            for id in ids:
                yield Need("ec2:RunInstances", self._ec2(kind, id))
        if params.get("InstanceMarketOptions.MarketType") == "spot":
            yield Need("ec2:RunInstances", self._ec2("spot-instances-request", "*"))
            if "spot-instances-request" in tags:
                context = {"ec2:CreateAction": "RunInstances"}
                yield Need("ec2:CreateTags", self._ec2("spot-instances-request", "*"), context)
        for name in _values(params, "KeyName"):
            yield Need("ec2:RunInstances", self._ec2("key-pair", name))

    async def _pass_role(self, params: Params) -> list[Need]:
        arns = _values(params, "IamInstanceProfile.Arn")
        names = _values(params, "IamInstanceProfile.Name") or [arn.rpartition("/")[2] for arn in arns]
        found = []
        for name in names:
            query = {"Action": "GetInstanceProfile", "Version": "2010-05-08", "InstanceProfileName": name}
            try:
                answer = await self._moto.call(urllib.parse.urlencode(query).encode(), signed("iam", self._moto.region))
            except Refusal:
                continue  # there is no such profile: the launch says so
            roles = xml.all_entries(xml.parse(answer), "Roles")
            to_ec2 = {"iam:PassedToService": "ec2.amazonaws.com"}
            found += [Need("iam:PassRole", xml.text(role, "Arn"), to_ec2) for role in roles]
        return found

    async def _tagged(self, action: str, id: str) -> Need:
        filters = {"Filter.1.Name": "resource-id", "Filter.1.Value.1": id}
        answer = xml.parse(await self._moto.ec2("DescribeTags", filters))
        tags = {xml.text(tag, "key"): xml.text(tag, "value") for tag in xml.all_entries(answer, "tagSet")}
        context = {f"aws:ResourceTag/{key}": value for key, value in tags.items()}
        return Need(f"ec2:{action}", self._ec2(_KINDS[id.partition("-")[0]], id), context)

    async def _detach(self, attachment: str) -> list[Need]:
        answer = xml.parse(await self._moto.ec2("DescribeNetworkInterfaces"))
        for interface in xml.all_entries(answer, "networkInterfaceSet"):
            if xml.text(interface, "attachment", "attachmentId") == attachment:
                ids = xml.text(interface, "networkInterfaceId"), xml.text(interface, "attachment", "instanceId")
                return [await self._tagged("DetachNetworkInterface", id) for id in ids if id]
        return [Need("ec2:DetachNetworkInterface", self._ec2("network-interface", "*"))]

    async def _secret(self, id: str) -> list[Need]:
        headers = signed("secretsmanager", self._moto.region)
        headers |= {"x-amz-target": "secretsmanager.DescribeSecret", "content-type": "application/x-amz-json-1.1"}
        answer, status, _ = await self._moto.forward("POST", "/", headers, json.dumps({"SecretId": id}).encode())
        if status >= 300:
            return [Need("secretsmanager:GetSecretValue", id)]
        secret = json.loads(answer)
        needs = [Need("secretsmanager:GetSecretValue", secret["ARN"])]
        if key := secret.get("KmsKeyId"):
            region = self._moto.region
            arn = key if key.startswith("arn:") else f"arn:aws:kms:{region}:{ACCOUNT}:key/{key}"
            needs.append(Need("kms:Decrypt", arn, {"kms:ViaService": f"secretsmanager.{region}.amazonaws.com"}))
        return needs

    def _parameter(self, name: str) -> Need:
        account = "" if name.startswith("/aws/service/") else ACCOUNT
        return Need("ssm:GetParameter", f"arn:aws:ssm:{self._moto.region}:{account}:parameter/{name.lstrip('/')}")


def _s3(call: Call) -> Need:
    bucket, _, key = call.path.lstrip("/").partition("/")
    if not key and call.method == "POST":
        return Need("s3:DeleteObject", f"arn:aws:s3:::{bucket}/*")  # many at once
    if not key:
        return Need("s3:ListBucket", f"arn:aws:s3:::{bucket}", {"s3:prefix": call.query.get("prefix", "")})
    return Need(f"s3:{_S3[call.method]}", f"arn:aws:s3:::{bucket}/{key}")


def _values(params: Params, name: str) -> Sequence[str]:
    """One value, or those of a list."""
    pattern = re.compile(rf"{re.escape(name)}(\.\d+)?")
    return [value for key, value in params.items() if pattern.fullmatch(key)]


def _request_tags(params: Params) -> dict[str, dict[str, str]]:
    """By the kind of what is created."""
    found: dict[str, dict[str, str]] = {}
    for name, key in params.items():
        if (tag := re.fullmatch(r"(TagSpecification\.\d+)(\.Tag\.\d+)\.Key", name)) is not None:
            kind = params.get(f"{tag[1]}.ResourceType", "")
            found.setdefault(kind, {})[key] = params.get(f"{tag[1]}{tag[2]}.Value", "")
    return found
