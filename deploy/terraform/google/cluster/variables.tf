variable "project_id" {
  description = "Project of the cluster."
  type        = string
}

variable "cluster_id" {
  description = "ID of the cluster: lower-case letters, digits and single hyphens."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9]+(-[a-z0-9]+)*$", var.cluster_id)) && length(var.cluster_id) <= 18
    error_message = "Expected lower-case letters, digits and single hyphens, at most 18 characters (service accounts have short names)."
  }
}

variable "bucket_name" {
  description = "Name of the bucket, unique in the world."
  type        = string
}

variable "location" {
  description = "Region of the bucket: that of the shards. A bucket farther away makes failover slower."
  type        = string
}

variable "passed_service_accounts" {
  description = "E-mail addresses of further service accounts that templates give to instances."
  type        = list(string)
  default     = []
}

variable "encryption_key_version" {
  description = "A higher number makes a new encryption key. Run nstance-admin cluster rekey afterwards."
  type        = number
  default     = 1
}

variable "noncurrent_version_days" {
  description = "How long replaced versions of objects are kept."
  type        = number
  default     = 30
}

variable "force_destroy" {
  description = "Let terraform destroy delete a bucket that is not empty."
  type        = bool
  default     = false
}

variable "labels" {
  description = "Labels of everything that is made here."
  type        = map(string)
  default     = {}
}
