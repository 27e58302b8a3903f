"""The fields of EC2's RunInstances, written by scripts/aws_fields.py from AWS's service model.

By name of the field: its name on the wire and its type. A type is the name of a scalar, a dictionary of fields, or a list
with the type of its entries.
"""

from typing import Any

RUN_INSTANCES: dict[str, Any] = {
    "AdditionalInfo": ("AdditionalInfo", "string"),
    "BlockDeviceMappings": (
        "BlockDeviceMapping",
        [
            {
                "DeviceName": ("DeviceName", "string"),
                "Ebs": (
                    "Ebs",
                    {
                        "AvailabilityZone": ("AvailabilityZone", "string"),
                        "AvailabilityZoneId": ("AvailabilityZoneId", "string"),
                        "DeleteOnTermination": ("DeleteOnTermination", "boolean"),
                        "EbsCardIndex": ("EbsCardIndex", "integer"),
                        "Encrypted": ("Encrypted", "boolean"),
                        "Iops": ("Iops", "integer"),
                        "KmsKeyId": ("KmsKeyId", "string"),
                        "OutpostArn": ("OutpostArn", "string"),
                        "SnapshotId": ("SnapshotId", "string"),
                        "Throughput": ("Throughput", "integer"),
                        "VolumeInitializationRate": ("VolumeInitializationRate", "integer"),
                        "VolumeSize": ("VolumeSize", "integer"),
                        "VolumeType": ("VolumeType", "string"),
                    },
                ),
                "NoDevice": ("NoDevice", "string"),
                "VirtualName": ("VirtualName", "string"),
            }
        ],
    ),
    "CapacityReservationSpecification": (
        "CapacityReservationSpecification",
        {
            "CapacityReservationPreference": ("CapacityReservationPreference", "string"),
            "CapacityReservationTarget": (
                "CapacityReservationTarget",
                {
                    "CapacityReservationId": ("CapacityReservationId", "string"),
                    "CapacityReservationResourceGroupArn": ("CapacityReservationResourceGroupArn", "string"),
                },
            ),
        },
    ),
    "ClientToken": ("ClientToken", "string"),
    "CpuOptions": (
        "CpuOptions",
        {
            "AmdSevSnp": ("AmdSevSnp", "string"),
            "CoreCount": ("CoreCount", "integer"),
            "NestedVirtualization": ("NestedVirtualization", "string"),
            "ThreadsPerCore": ("ThreadsPerCore", "integer"),
        },
    ),
    "CreditSpecification": ("CreditSpecification", {"CpuCredits": ("CpuCredits", "string")}),
    "DisableApiStop": ("DisableApiStop", "boolean"),
    "DisableApiTermination": ("DisableApiTermination", "boolean"),
    "DryRun": ("DryRun", "boolean"),
    "EbsOptimized": ("EbsOptimized", "boolean"),
    "ElasticGpuSpecification": ("ElasticGpuSpecification", [{"Type": ("Type", "string")}]),
    "ElasticInferenceAccelerators": (
        "ElasticInferenceAccelerator",
        [{"Count": ("Count", "integer"), "Type": ("Type", "string")}],
    ),
    "EnablePrimaryIpv6": ("EnablePrimaryIpv6", "boolean"),
    "EnclaveOptions": ("EnclaveOptions", {"Enabled": ("Enabled", "boolean")}),
    "HibernationOptions": ("HibernationOptions", {"Configured": ("Configured", "boolean")}),
    "IamInstanceProfile": ("IamInstanceProfile", {"Arn": ("Arn", "string"), "Name": ("Name", "string")}),
    "ImageId": ("ImageId", "string"),
    "InstanceInitiatedShutdownBehavior": ("InstanceInitiatedShutdownBehavior", "string"),
    "InstanceMarketOptions": (
        "InstanceMarketOptions",
        {
            "MarketType": ("MarketType", "string"),
            "SpotOptions": (
                "SpotOptions",
                {
                    "BlockDurationMinutes": ("BlockDurationMinutes", "integer"),
                    "InstanceInterruptionBehavior": ("InstanceInterruptionBehavior", "string"),
                    "MaxPrice": ("MaxPrice", "string"),
                    "SpotInstanceType": ("SpotInstanceType", "string"),
                    "ValidUntil": ("ValidUntil", "timestamp"),
                },
            ),
        },
    ),
    "InstanceType": ("InstanceType", "string"),
    "Ipv6AddressCount": ("Ipv6AddressCount", "integer"),
    "Ipv6Addresses": (
        "Ipv6Address",
        [{"Ipv6Address": ("Ipv6Address", "string"), "IsPrimaryIpv6": ("IsPrimaryIpv6", "boolean")}],
    ),
    "KernelId": ("KernelId", "string"),
    "KeyName": ("KeyName", "string"),
    "LaunchTemplate": (
        "LaunchTemplate",
        {
            "LaunchTemplateId": ("LaunchTemplateId", "string"),
            "LaunchTemplateName": ("LaunchTemplateName", "string"),
            "Version": ("Version", "string"),
        },
    ),
    "LicenseSpecifications": (
        "LicenseSpecification",
        [{"LicenseConfigurationArn": ("LicenseConfigurationArn", "string")}],
    ),
    "MaintenanceOptions": ("MaintenanceOptions", {"AutoRecovery": ("AutoRecovery", "string")}),
    "MaxCount": ("MaxCount", "integer"),
    "MetadataOptions": (
        "MetadataOptions",
        {
            "HttpEndpoint": ("HttpEndpoint", "string"),
            "HttpProtocolIpv6": ("HttpProtocolIpv6", "string"),
            "HttpPutResponseHopLimit": ("HttpPutResponseHopLimit", "integer"),
            "HttpTokens": ("HttpTokens", "string"),
            "InstanceMetadataTags": ("InstanceMetadataTags", "string"),
        },
    ),
    "MinCount": ("MinCount", "integer"),
    "Monitoring": ("Monitoring", {"Enabled": ("Enabled", "boolean")}),
    "NetworkInterfaces": (
        "NetworkInterface",
        [
            {
                "AssociateCarrierIpAddress": ("AssociateCarrierIpAddress", "boolean"),
                "AssociatePublicIpAddress": ("AssociatePublicIpAddress", "boolean"),
                "ConnectionTrackingSpecification": (
                    "ConnectionTrackingSpecification",
                    {
                        "TcpEstablishedTimeout": ("TcpEstablishedTimeout", "integer"),
                        "UdpStreamTimeout": ("UdpStreamTimeout", "integer"),
                        "UdpTimeout": ("UdpTimeout", "integer"),
                    },
                ),
                "DeleteOnTermination": ("DeleteOnTermination", "boolean"),
                "Description": ("Description", "string"),
                "DeviceIndex": ("DeviceIndex", "integer"),
                "EnaQueueCount": ("EnaQueueCount", "integer"),
                "EnaSrdSpecification": (
                    "EnaSrdSpecification",
                    {
                        "EnaSrdEnabled": ("EnaSrdEnabled", "boolean"),
                        "EnaSrdUdpSpecification": (
                            "EnaSrdUdpSpecification",
                            {"EnaSrdUdpEnabled": ("EnaSrdUdpEnabled", "boolean")},
                        ),
                    },
                ),
                "Groups": ("SecurityGroupId", ["string"]),
                "InterfaceType": ("InterfaceType", "string"),
                "Ipv4PrefixCount": ("Ipv4PrefixCount", "integer"),
                "Ipv4Prefixes": ("Ipv4Prefix", [{"Ipv4Prefix": ("Ipv4Prefix", "string")}]),
                "Ipv6AddressCount": ("Ipv6AddressCount", "integer"),
                "Ipv6Addresses": (
                    "Ipv6Addresses",
                    [{"Ipv6Address": ("Ipv6Address", "string"), "IsPrimaryIpv6": ("IsPrimaryIpv6", "boolean")}],
                ),
                "Ipv6PrefixCount": ("Ipv6PrefixCount", "integer"),
                "Ipv6Prefixes": ("Ipv6Prefix", [{"Ipv6Prefix": ("Ipv6Prefix", "string")}]),
                "NetworkCardIndex": ("NetworkCardIndex", "integer"),
                "NetworkInterfaceId": ("NetworkInterfaceId", "string"),
                "PrimaryIpv6": ("PrimaryIpv6", "boolean"),
                "PrivateIpAddress": ("PrivateIpAddress", "string"),
                "PrivateIpAddresses": (
                    "PrivateIpAddresses",
                    [{"Primary": ("Primary", "boolean"), "PrivateIpAddress": ("PrivateIpAddress", "string")}],
                ),
                "SecondaryPrivateIpAddressCount": ("SecondaryPrivateIpAddressCount", "integer"),
                "SubnetId": ("SubnetId", "string"),
            }
        ],
    ),
    "NetworkPerformanceOptions": (
        "NetworkPerformanceOptions",
        {"BandwidthWeighting": ("BandwidthWeighting", "string")},
    ),
    "Operator": ("Operator", {"Principal": ("Principal", "string")}),
    "Placement": (
        "Placement",
        {
            "Affinity": ("Affinity", "string"),
            "AvailabilityZone": ("AvailabilityZone", "string"),
            "AvailabilityZoneId": ("AvailabilityZoneId", "string"),
            "GroupId": ("GroupId", "string"),
            "GroupName": ("GroupName", "string"),
            "HostId": ("HostId", "string"),
            "HostResourceGroupArn": ("HostResourceGroupArn", "string"),
            "PartitionNumber": ("PartitionNumber", "integer"),
            "SpreadDomain": ("SpreadDomain", "string"),
            "Tenancy": ("Tenancy", "string"),
        },
    ),
    "PrivateDnsNameOptions": (
        "PrivateDnsNameOptions",
        {
            "EnableResourceNameDnsAAAARecord": ("EnableResourceNameDnsAAAARecord", "boolean"),
            "EnableResourceNameDnsARecord": ("EnableResourceNameDnsARecord", "boolean"),
            "HostnameType": ("HostnameType", "string"),
        },
    ),
    "PrivateIpAddress": ("PrivateIpAddress", "string"),
    "RamdiskId": ("RamdiskId", "string"),
    "SecondaryInterfaces": (
        "SecondaryInterface",
        [
            {
                "DeleteOnTermination": ("DeleteOnTermination", "boolean"),
                "DeviceIndex": ("DeviceIndex", "integer"),
                "InterfaceType": ("InterfaceType", "string"),
                "NetworkCardIndex": ("NetworkCardIndex", "integer"),
                "PrivateIpAddressCount": ("PrivateIpAddressCount", "integer"),
                "PrivateIpAddresses": ("PrivateIpAddress", [{"PrivateIpAddress": ("PrivateIpAddress", "string")}]),
                "SecondarySubnetId": ("SecondarySubnetId", "string"),
            }
        ],
    ),
    "SecurityGroupIds": ("SecurityGroupId", ["string"]),
    "SecurityGroups": ("SecurityGroup", ["string"]),
    "SubnetId": ("SubnetId", "string"),
    "TagSpecifications": (
        "TagSpecification",
        [
            {
                "ResourceType": ("ResourceType", "string"),
                "Tags": ("Tag", [{"Key": ("Key", "string"), "Value": ("Value", "string")}]),
            }
        ],
    ),
    "UserData": ("UserData", "string"),
}
