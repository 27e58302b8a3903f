variable "cluster" {
  description = "The output `cluster` of the cluster module."
  type = object({
    id                        = string
    bucket                    = string
    key_prefix                = string
    encryption_key_secret_arn = string
    server_instance_profile   = string
    agent_instance_profile    = string
  })
}

variable "shard_id" {
  description = "ID of the shard, usually named after its zone."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9]+(-[a-z0-9]+)*$", var.shard_id)) && length(var.shard_id) <= 32
    error_message = "Expected lower-case letters, digits and single hyphens, at most 32 characters."
  }
}

variable "vpc_id" {
  description = "VPC of the servers and the instances."
  type        = string
}

variable "server_subnet_ids" {
  description = "Subnets of the servers, normally one, in the zone of the shard."
  type        = list(string)

  validation {
    condition     = length(var.server_subnet_ids) > 0
    error_message = "Expected at least one subnet."
  }
}

variable "subnet_pools" {
  description = "Subnet pools of the instances: name to subnet IDs."
  type        = map(list(string))
}

variable "server_package" {
  description = "Where the server is downloaded from (make server-bundle): an https URL, or s3://BUCKET/KEY, and its SHA-256 checksum."
  type = object({
    url    = string
    sha256 = string
  })

  validation {
    condition     = can(regex("^(https?|s3)://", var.server_package.url)) && can(regex("^[0-9a-f]{64}$", var.server_package.sha256))
    error_message = "Expected a URL that starts with https:// or s3://, and a checksum of 64 hexadecimal digits."
  }
}

variable "agent" {
  description = "Block `agent` of the configuration: url or object, sha256, version. Null for images that contain the agent."
  type        = any
  default     = null
}

variable "desired_capacity" {
  description = "Servers: 1, 2 for one with a standby, 0 to stop the shard's server. Instances keep running without one."
  type        = number
  default     = 1

  validation {
    condition     = contains([0, 1, 2], var.desired_capacity)
    error_message = "Expected 0, 1 or 2."
  }
}

variable "instance_type" {
  description = "Type of the servers."
  type        = string
  default     = "t4g.nano"
}

variable "ami_id" {
  description = "Image of the servers. Default: the newest Amazon Linux 2023 for the architecture."
  type        = string
  default     = null
}

variable "architecture" {
  description = "Architecture of the servers: arm64 or amd64."
  type        = string
  default     = "arm64"

  validation {
    condition     = contains(["arm64", "amd64"], var.architecture)
    error_message = "Expected arm64 or amd64."
  }
}

variable "key_name" {
  description = "SSH key pair of the servers, if any."
  type        = string
  default     = null
}

variable "leader_address" {
  description = "How agents find the leader. interface: a network interface that moves to the leader; ip: a secondary IP, which moves faster; none: agents get the address of the server that created them, so a new server cannot reach them."
  type = object({
    kind = optional(string, "interface")
    ip   = optional(string)
  })
  default = {}

  validation {
    condition     = contains(["ip", "interface", "none"], var.leader_address.kind)
    error_message = "Expected the kind ip, interface or none."
  }

  validation {
    condition     = (var.leader_address.kind == "ip") == (var.leader_address.ip != null)
    error_message = "Expected an ip, a free address in the servers' subnet, with the kind ip and with no other kind."
  }
}

variable "operator_cidrs" {
  description = "Networks from which operators and nstance-admin connect (port 8993)."
  type        = list(string)
  default     = []
}

variable "metrics_cidrs" {
  description = "Networks from which health and metrics are read (port 8990)."
  type        = list(string)
  default     = []
}

variable "agent_security_group_ids" {
  description = "Further security groups of instances whose agents may connect, beside the one of this module."
  type        = list(string)
  default     = []
}

variable "target_group_arns" {
  description = "Target groups of a load balancer that checks /health on port 8990. With one, a server that fails the check is replaced."
  type        = list(string)
  default     = []
}

variable "templates" {
  description = "Block `templates` of the configuration."
  type        = any
  default     = {}
}

variable "groups" {
  description = "Block `groups` of the configuration."
  type        = any
  default     = {}
}

variable "images" {
  description = "Block `images` of the configuration."
  type        = any
  default     = {}
}

variable "certificates" {
  description = "Block `certificates` of the configuration."
  type        = any
  default     = {}
}

variable "defaults" {
  description = "Block `defaults` of the configuration. Its args get the security group of this module, unless they name others."
  type        = any
  default     = {}
}

variable "load_balancers" {
  description = "Block `load_balancers` of the configuration."
  type        = any
  default     = {}
}

variable "tenants" {
  description = "Block `tenants` of the configuration."
  type        = any
  default     = {}
}

variable "shard_settings" {
  description = "Further keys of the block `shard`, such as health or garbage_collection."
  type        = any
  default     = {}
}

variable "validate_config" {
  description = "Check the configuration with the program nstance-server of the machine that runs Terraform, before it is uploaded."
  type        = bool
  default     = false
}

variable "environment" {
  description = "Further environment variables of the server, such as AWS_ENDPOINT_URL for a private cloud. No secrets."
  type        = map(string)
  default     = {}
}

variable "log_retention_days" {
  description = "Days for which logs are kept; 0 for no log group."
  type        = number
  default     = 30
}

variable "alarm_topic_arns" {
  description = "SNS topics of the alarms; without one there are no alarms."
  type        = list(string)
  default     = []
}

variable "tags" {
  description = "Tags of all resources."
  type        = map(string)
  default     = {}
}
