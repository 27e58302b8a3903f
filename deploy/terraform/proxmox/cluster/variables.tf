variable "nodes" {
  description = "Nodes that get a template. One is enough if the template's storage is shared by all nodes."
  type        = list(string)

  validation {
    condition     = length(var.nodes) > 0
    error_message = "Expected at least one node."
  }
}

variable "image" {
  description = "Cloud image of the template: URL of a qcow2 file, and its SHA-512 checksum."
  type = object({
    url    = string
    sha512 = string
  })

  validation {
    condition     = startswith(var.image.url, "https://") && can(regex("^[0-9a-f]{128}$", var.image.sha512))
    error_message = "Expected a URL that starts with https://, and a checksum of 128 hexadecimal digits."
  }
}

variable "template_name" {
  description = "Name of the template, for TemplateName in args."
  type        = string
  default     = "nstance-debian"
}

variable "first_template_vmid" {
  description = "VMID of the first template; those of further nodes follow. Keep it outside the range of option vmids."
  type        = number
  default     = 9000
}

variable "disk_storages" {
  description = "Storages for the disks of instances. The first one holds the template."
  type        = list(string)
  default     = ["local-lvm"]

  validation {
    condition     = length(var.disk_storages) > 0
    error_message = "Expected at least one storage."
  }
}

variable "iso_storage" {
  description = "Storage with content type iso on every node: userdata, and the downloaded image."
  type        = string
  default     = "local"
}

variable "bridge" {
  description = "Bridge of the template's network interface."
  type        = string
  default     = "vmbr0"
}

variable "pool" {
  description = "Existing resource pool that the rights on VMs are limited to. Empty: all VMs."
  type        = string
  default     = ""
}

variable "user" {
  description = "User whose token the servers use."
  type        = string
  default     = "nstance@pve"
}
