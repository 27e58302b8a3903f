variable "cluster" {
  description = "The output `cluster` of the cluster module."
  type = object({
    id                    = string
    project_id            = string
    bucket                = string
    encryption_key_secret = string
    server_account        = string
    agent_account         = string
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

variable "zone" {
  description = "Zone of the server and of all instances of the shard."
  type        = string

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+-[a-z]$", var.zone))
    error_message = "Expected a zone such as europe-west1-b."
  }
}

variable "network" {
  description = "Network of the servers and the instances, for the firewall."
  type        = string
}

variable "server_subnetwork" {
  description = "Subnet of the servers."
  type        = string
}

variable "subnet_pools" {
  description = "Subnet pools of the instances: name to names of subnets in the region."
  type        = map(list(string))
}

variable "server_package" {
  description = "Where the server is downloaded from (make server-bundle): an https URL, and its SHA-256 checksum."
  type = object({
    url    = string
    sha256 = string
  })

  validation {
    condition     = can(regex("^https?://", var.server_package.url)) && can(regex("^[0-9a-f]{64}$", var.server_package.sha256))
    error_message = "Expected a URL that starts with https://, and a checksum of 64 hexadecimal digits."
  }
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

variable "machine_type" {
  description = "Type of the servers."
  type        = string
  default     = "e2-micro"
}

variable "image" {
  description = "Image of the servers, with systemd and curl."
  type        = string
  default     = "projects/debian-cloud/global/images/family/debian-12"
}

variable "leader_ip" {
  description = "A free address of the servers' subnet, which moves to the leader as an alias. Null: agents get the address of the server that created them, so a new server cannot reach them."
  type        = string
  default     = null
}

variable "agent_tags" {
  description = "Network tags of the instances: their agents may connect to the servers."
  type        = list(string)
  default     = []
}

variable "operator_cidrs" {
  description = "Networks from which operators connect."
  type        = list(string)
  default     = []
}

variable "metrics_cidrs" {
  description = "Networks from which health and metrics are read."
  type        = list(string)
  default     = []
}

variable "settings" {
  description = "Further blocks of the configuration: tenants, images, certificates, defaults, templates, groups, load_balancers, agent."
  type        = any
  default     = {}
}

variable "shard_settings" {
  description = "Further keys of the block `shard`."
  type        = any
  default     = {}
}

variable "environment" {
  description = "Further environment variables of the server."
  type        = map(string)
  default     = {}
}

variable "labels" {
  description = "Labels of everything that is made here."
  type        = map(string)
  default     = {}
}
