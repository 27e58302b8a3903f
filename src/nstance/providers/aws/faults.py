"""From what AWS says to what follows from it."""

from contextlib import AbstractContextManager

from nstance.aws.errors import AwsError
from nstance.providers import cloud_answers, errors
from nstance.providers.errors import CapacityScope

PERMISSIONS = "docs/aws.md#permissions"
THROTTLED_SECONDS = 1.0  # EC2 does not say how long: its buckets refill every second
RUN_INSTANCES = "ec2:RunInstances"

# Errors of RunInstances that mean: not with this offer, try another one.
NO_CAPACITY = {
    "InsufficientInstanceCapacity": CapacityScope.OFFER,
    "InsufficientCapacity": CapacityScope.OFFER,
    "InsufficientHostCapacity": CapacityScope.OFFER,
    "InsufficientCapacityOnOutpost": CapacityScope.OFFER,
    "InsufficientReservedInstanceCapacity": CapacityScope.OFFER,
    "ReservationCapacityExceeded": CapacityScope.OFFER,
    "InsufficientVolumeCapacity": CapacityScope.OFFER,
    "UnfulfillableCapacity": CapacityScope.OFFER,
    "Unsupported": CapacityScope.OFFER,  # this type does not exist in this zone
    "SpotMaxPriceTooLow": CapacityScope.OFFER,
    "InsufficientFreeAddressesInSubnet": CapacityScope.SUBNET,
    # Spot and on-demand instances have quotas of their own, and in both each family of types (standard, G, P, X…):
    "MaxSpotInstanceCountExceeded": CapacityScope.TYPE_QUOTA,
    "SpotInstanceCountExceeded": CapacityScope.TYPE_QUOTA,
    "VcpuLimitExceeded": CapacityScope.TYPE_QUOTA,
    "InstanceLimitExceeded": CapacityScope.TYPE_QUOTA,
    "NetworkInterfaceLimitExceeded": CapacityScope.QUOTA,  # every instance needs one
}
# Where the configuration says what AWS objects to, by the beginning of the error's code.
_PATHS = {
    "InvalidAMIID": "args.ImageId",
    "InvalidSubnet": "subnet_pools",
    "InvalidSubnetID": "subnet_pools",
    "InvalidGroup": "args.SecurityGroupIds",
    "InvalidSecurityGroupID": "args.SecurityGroupIds",
    "InvalidKeyPair": "args.KeyName",
    "InvalidInstanceType": "instance_type",
    "InvalidSnapshot": "args.BlockDeviceMappings",
    "InvalidBlockDeviceMapping": "args.BlockDeviceMappings",
    "InvalidPlacementGroup": "args.Placement.GroupName",
    "InvalidLaunchTemplateName": "args.LaunchTemplate",
    "InvalidLaunchTemplateId": "args.LaunchTemplate",
    "InvalidNetworkInterfaceID": "leader_network.interface_id",
    "TargetGroupNotFound": "load_balancers.*.target_group_arns",
}
_NO_SPOT_ROLE = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
_NOT_FOUND = (".NotFound", "NotFoundException", "ParameterNotFound", "TargetGroupNotFound")


def translated(action: str, *, changes: bool) -> AbstractContextManager[None]:
    """`changes`: a call without a reply may have changed something. `action` is the permission that it needs."""
    return cloud_answers.translated(
        AwsError, lambda problem: from_aws(problem, action, changes=changes), changes=changes
    )


def from_aws(problem: AwsError, action: str, *, changes: bool) -> errors.ProviderError:
    if problem.is_throttled:
        return errors.ThrottledError(str(problem), delay=THROTTLED_SECONDS)
    if action == RUN_INSTANCES and problem.code in NO_CAPACITY:
        return errors.NoCapacityError(str(problem), scope=NO_CAPACITY[problem.code])
    if problem.is_expired:
        return errors.OutOfReachError(f"AWS does not accept the credentials, which are fetched again: {problem}")
    if problem.code == _NO_SPOT_ROLE:
        return errors.PermanentError(
            "the account never had spot instances; create its role for them once with: "
            f"aws iam create-service-linked-role --aws-service-name spot.amazonaws.com: {problem}",
            permission="iam:CreateServiceLinkedRole",
        )
    if problem.is_denied:
        missing = problem.permission or action
        return errors.PermanentError(
            f"AWS denied {missing}: allow it in the server's role, see {PERMISSIONS}: {problem}", permission=missing
        )
    if problem.is_server_fault:
        return errors.UnknownOutcomeError(str(problem)) if changes else errors.UnavailableError(str(problem))
    if problem.code.endswith(_NOT_FOUND):
        return errors.NotFoundError(_named(problem))
    return errors.PermanentError(_named(problem), parameter=path_of(problem))


def code_of(problem: BaseException) -> str:
    """AWS's own word for what a translated error was."""
    return problem.__cause__.code if isinstance(problem.__cause__, AwsError) else ""


def _named(problem: AwsError) -> str:
    path = path_of(problem)
    return f"{path}: {problem}" if path else str(problem)


def path_of(problem: AwsError) -> str:
    """Where the configuration says what AWS objects to; empty if that is not known."""
    if problem.code == "InvalidParameterValue" and "iaminstanceprofile" in problem.message.lower():
        return "args.IamInstanceProfile"
    if problem.code == "AuthFailure" and "images" in problem.message:
        return "args.ImageId"  # the account may not use it
    return _PATHS.get(problem.code.partition(".")[0], "")
