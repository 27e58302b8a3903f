# Three zones, three shards, each with a standby, in your own network. See ../../README.md.

terraform {
  required_version = ">= 1.11"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.23"
    }
  }
}

provider "google" {
  project = var.project_id
  region  = var.region
}

variable "project_id" {
  description = "Project of everything."
  type        = string
}

variable "region" {
  description = "Region of everything."
  type        = string
}

variable "cluster_id" {
  description = "ID of the cluster."
  type        = string
}

variable "bucket_name" {
  description = "Name of the bucket, unique in the world."
  type        = string
}

variable "network" {
  description = "Network with Private Google Access or Cloud NAT in its subnets."
  type        = string
}

variable "zones" {
  description = "Zone to the subnets of servers and instances, and a free address of the servers' subnet that moves to the leader."
  type        = map(object({ server_subnetwork = string, instance_subnetworks = list(string), leader_ip = string }))
}

variable "operator_cidrs" {
  description = "Networks of the Kubernetes nodes that run the operator, and of people."
  type        = list(string)
}

variable "metrics_cidrs" {
  description = "Networks of Prometheus."
  type        = list(string)
  default     = []
}

variable "server_package" {
  description = "URL and checksum of the server's bundle for amd64."
  type        = object({ url = string, sha256 = string })
}

variable "agent_sha256" {
  description = "Checksums of the agent's bundles in the bucket: amd64 and arm64."
  type        = map(string)
}

module "cluster" {
  source      = "../../cluster"
  project_id  = var.project_id
  cluster_id  = var.cluster_id
  bucket_name = var.bucket_name
  location    = var.region
}

module "shard" {
  source   = "../../shard"
  for_each = var.zones

  cluster           = module.cluster.cluster
  shard_id          = each.key
  zone              = each.key
  network           = var.network
  server_subnetwork = each.value.server_subnetwork
  subnet_pools      = { main = each.value.instance_subnetworks }
  leader_ip         = each.value.leader_ip
  server_package    = var.server_package
  machine_type      = "e2-small"
  desired_capacity  = 2
  agent_tags        = ["nstance-${var.cluster_id}"]
  operator_cidrs    = var.operator_cidrs
  metrics_cidrs     = var.metrics_cidrs

  settings = {
    # Signed by the servers: instances need no permission to download it.
    agent  = { object = "agents/nstance-agent-linux-{arch}.tar.gz", sha256 = var.agent_sha256 }
    images = { debian = { provider = "gcp", filters = [{ name = "family", values = ["debian-12"] }], owners = ["debian-cloud"] } }
    templates = {
      worker = {
        kind           = "wrk"
        arch           = "amd64"
        instance_types = ["e2-standard-2", "n2-standard-2"]
        userdata       = { base = "agent" }
        args = {
          SourceImage    = "{{ .Image.debian }}"
          NetworkTags    = ["nstance-${var.cluster_id}"]
          ServiceAccount = module.cluster.cluster.agent_account
        }
      }
    }
    groups = { default = { workers = { template = "worker", size = 3, update = { max_surge = 1 } } } }
  }
}

output "shards" {
  description = "Where operators connect, by zone."
  value       = { for zone, settings in var.zones : zone => "${settings.leader_ip}:8993" }
}

output "register_operator" {
  description = "Creates the nonce with which the operator registers. Run it with the servers' permissions."
  value       = "nstance-admin cluster nonce --cluster-id ${var.cluster_id} --storage-provider gcs --storage-bucket ${var.bucket_name} --key-provider google-secret-manager --key-source ${module.cluster.cluster.encryption_key_secret} --output nonce.jwt"
}
