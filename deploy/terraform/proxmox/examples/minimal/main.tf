# One node, one shard, three instances. See ../../README.md.

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
  description = "Address of the Proxmox API."
  type        = string
}

variable "ca_certificate" {
  description = "The cluster's CA (/etc/pve/pve-root-ca.pem) as PEM."
  type        = string
}

variable "node" {
  description = "The node."
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
  description = "Environment of the server: access to the bucket, and NSTANCE_ENCRYPTION_KEY."
  type        = map(string)
  sensitive   = true
}

module "cluster" {
  source = "../../cluster"
  nodes  = [var.node]
  image  = var.image
}

module "shard" {
  source         = "../../shard"
  cluster        = module.cluster.cluster
  cluster_id     = "example"
  shard_id       = var.node
  api_url        = var.api_url
  ca_certificate = var.ca_certificate
  server_nodes   = [var.node]
  server_package = var.server_package
  bucket         = var.bucket
  environment    = merge(var.environment, { PROXMOX_TOKEN_SECRET = module.cluster.token_secret })

  templates = {
    web = {
      kind          = "web"
      instance_type = "cpu:1,memory:1024,disk:8"
      userdata      = { base = "agent" }
    }
  }
  groups = { default = { web = { template = "web", size = 3 } } }
}

output "config" {
  value = module.shard.config
}
