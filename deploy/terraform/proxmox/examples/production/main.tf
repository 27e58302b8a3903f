# Three nodes with shared storage, a shard with a standby, a resource pool, a load balancer behind a webhook. See ../../README.md.

terraform {
  required_version = ">= 1.11"

  required_providers {
    proxmox = {
      source  = "bpg/proxmox"
      version = ">= 0.66, < 1.0"
    }
  }
}

# PROXMOX_VE_API_TOKEN and PROXMOX_VE_SSH_USERNAME are in the environment.
provider "proxmox" {
  endpoint = var.api_url

  ssh {
    agent = true
  }
}

variable "api_url" {
  description = "Address of the Proxmox API, for example of a proxy before all nodes."
  type        = string
}

variable "ca_certificate" {
  description = "The cluster's CA (/etc/pve/pve-root-ca.pem) as PEM."
  type        = string
}

variable "nodes" {
  description = "Three nodes."
  type        = list(string)

  validation {
    condition     = length(var.nodes) == 3
    error_message = "Expected three nodes."
  }
}

variable "shared_storage" {
  description = "Storage for disks that all nodes reach, such as Ceph or NFS."
  type        = string
}

variable "pool" {
  description = "Existing resource pool of the instances."
  type        = string
}

variable "image" {
  description = "Cloud image: URL and SHA-512 checksum."
  type        = object({ url = string, sha512 = string })
}

variable "server_package" {
  description = "URL and checksum of the server's bundle (make server-bundle)."
  type        = object({ url = string, sha256 = string })
}

variable "bucket" {
  description = "Bucket of the cluster on an S3 server."
  type        = string
}

variable "environment" {
  description = "Environment of the servers: access to the bucket, and NSTANCE_ENCRYPTION_KEY."
  type        = map(string)
  sensitive   = true
}

variable "webhook_url" {
  description = "Service that keeps the members of the load balancer. Its secret is lb-front in the cluster's secret store."
  type        = string
}

module "cluster" {
  source        = "../../cluster"
  nodes         = [var.nodes[0]] # shared storage: one template serves all nodes
  image         = var.image
  disk_storages = [var.shared_storage]
  pool          = var.pool
}

module "shard" {
  source         = "../../shard"
  cluster        = module.cluster.cluster
  cluster_id     = "production"
  shard_id       = "rack-1"
  api_url        = var.api_url
  ca_certificate = var.ca_certificate
  server_nodes   = [var.nodes[0], var.nodes[1]] # the second server is the standby
  server_package = var.server_package
  bucket         = var.bucket
  environment    = merge(var.environment, { PROXMOX_TOKEN_SECRET = module.cluster.token_secret })
  options        = { nodes = var.nodes, memory_overcommit = 1.2, reserve_memory_mib = 4096 }

  load_balancers = {
    front = { provider = "webhook", url = var.webhook_url, secret = "lb-front", port = 8080 }
  }
  templates = {
    web = {
      kind          = "web"
      instance_type = "cpu:2,memory:4096,disk:32"
      userdata      = { base = "agent" }
      args          = { IpConfig = "ip=dhcp,ip6=auto" }
    }
  }
  groups = { default = { web = { template = "web", size = 6, load_balancers = ["front"] } } }
}

output "config" {
  value = module.shard.config
}
