variable "cluster_id" {
  description = "ID of the cluster, as in the configuration of its shards."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9]+(-[a-z0-9]+)*$", var.cluster_id)) && length(var.cluster_id) <= 32
    error_message = "Expected lower-case letters, digits and single hyphens, at most 32 characters."
  }
}

variable "bucket_name" {
  description = "Name of the bucket for the state of all shards. It must be unique in all of AWS."
  type        = string
}

variable "key_prefix" {
  description = "Prefix of all keys in the bucket, with a slash at its end; empty for none."
  type        = string
  default     = ""

  validation {
    condition     = var.key_prefix == "" || endswith(var.key_prefix, "/")
    error_message = "Expected a prefix with a slash at its end, such as \"nstance/\"."
  }
}

variable "force_destroy" {
  description = "Let destroy delete the bucket with all state, and the encryption key at once. For tests."
  type        = bool
  default     = false
}

variable "noncurrent_version_days" {
  description = "Days after which overwritten or deleted versions of objects are removed."
  type        = number
  default     = 30
}

variable "tls_only" {
  description = "Deny requests to the bucket without TLS. Set it to false only for a stand-in without TLS."
  type        = bool
  default     = true
}

variable "passed_role_arns" {
  description = "Roles that templates may give to instances (args.IamInstanceProfile), beside the agent role."
  type        = list(string)
  default     = []
}

variable "target_group_arns" {
  description = "Target groups of load balancers in which servers register instances."
  type        = list(string)
  default     = []
}

variable "encryption_key" {
  description = "An encryption key that exists: its secret in Secrets Manager, and the KMS key of the secret if it has one of its own. Default: both are created."
  type = object({
    secret_arn  = string
    kms_key_arn = optional(string)
  })
  default = null
}

variable "encryption_key_version" {
  description = "Raise it to rotate the encryption key. The previous key stays readable."
  type        = number
  default     = 1
}

variable "permissions_boundary_arn" {
  description = "Permissions boundary of both roles, if the account requires one."
  type        = string
  default     = null
}

variable "tags" {
  description = "Tags of all resources."
  type        = map(string)
  default     = {}
}
