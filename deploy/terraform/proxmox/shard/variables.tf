variable "cluster" {
  description = "The output `cluster` of the cluster module."
  type = object({
    template_name  = string
    template_vmids = map(number)
    disk_storages  = list(string)
    iso_storage    = string
    pool           = string
    token_id       = string
  })
}

variable "cluster_id" {
  description = "ID of the cluster."
  type        = string
}

variable "shard_id" {
  description = "ID of the shard, for example the name of the rack."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9]+(-[a-z0-9]+)*$", var.shard_id)) && length(var.shard_id) <= 32
    error_message = "Expected lower-case letters, digits and single hyphens, at most 32 characters."
  }
}

variable "api_url" {
  description = "Address of the Proxmox API as servers reach it, such as https://pve1.internal:8006."
  type        = string
}

variable "ca_certificate" {
  description = "The cluster's CA (/etc/pve/pve-root-ca.pem) as PEM."
  type        = string
}

variable "server_nodes" {
  description = "Nodes of the servers: one server on each. Two give a standby."
  type        = list(string)

  validation {
    condition     = length(var.server_nodes) > 0
    error_message = "Expected at least one node."
  }
}

variable "server_package" {
  description = "Where the server is downloaded from (make server-bundle): an https URL, and its SHA-256 checksum."
  type = object({
    url    = string
    sha256 = string
  })

  validation {
    condition     = startswith(var.server_package.url, "https://") && can(regex("^[0-9a-f]{64}$", var.server_package.sha256))
    error_message = "Expected a URL that starts with https://, and a checksum of 64 hexadecimal digits."
  }
}

variable "bucket" {
  description = "Bucket of the cluster on an S3 server that all servers reach."
  type        = string
}

variable "environment" {
  description = "Environment of the servers: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, NSTANCE_ENCRYPTION_KEY, PROXMOX_TOKEN_SECRET."
  type        = map(string)
  sensitive   = true
}

variable "snippet_storage" {
  description = "Storage with content type snippets, for the servers' user data. Uploading to it needs SSH access of Terraform's provider."
  type        = string
  default     = "local"
}

variable "bridge" {
  description = "Bridge of the servers."
  type        = string
  default     = "vmbr0"
}

variable "options" {
  description = "Further options of the provider proxmox, such as nodes or memory_overcommit."
  type        = any
  default     = {}
}

variable "templates" {
  description = "Block `templates` of the configuration. TemplateName and StoragePool have defaults."
  type        = any
}

variable "groups" {
  description = "Block `groups` of the configuration: tenant to group to settings."
  type        = any
}

variable "load_balancers" {
  description = "Block `load_balancers` of the configuration: webhooks and files."
  type        = any
  default     = {}
}

variable "shard_settings" {
  description = "Further keys of the block `shard` of the configuration."
  type        = any
  default     = {}
}
