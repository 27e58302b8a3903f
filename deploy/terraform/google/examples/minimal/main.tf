# One zone, one shard, three instances, in the default network.

terraform {
  required_version = ">= 1.11"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.23"
    }
  }
}

variable "project_id" {
  type = string
}

variable "bucket_name" {
  type = string
}

variable "server_package" {
  type = object({ url = string, sha256 = string })
}

variable "agent" {
  type = any
}

locals {
  region = "europe-west1"
  zone   = "europe-west1-b"
}

provider "google" {
  project = var.project_id
  region  = local.region
}

module "cluster" {
  source      = "../../cluster"
  project_id  = var.project_id
  cluster_id  = "minimal"
  bucket_name = var.bucket_name
  location    = local.region
}

module "shard" {
  source            = "../../shard"
  cluster           = module.cluster.cluster
  shard_id          = local.zone
  zone              = local.zone
  network           = "default"
  server_subnetwork = "default"
  subnet_pools      = { main = ["default"] }
  server_package    = var.server_package
  agent_tags        = ["nstance-minimal"]

  settings = {
    agent  = var.agent
    images = { debian = { provider = "gcp", filters = [{ name = "family", values = ["debian-12"] }], owners = ["debian-cloud"] } }
    templates = {
      web = {
        kind          = "web"
        arch          = "amd64"
        instance_type = "e2-small"
        userdata      = { base = "agent", content = "echo set up\n" }
        args = {
          SourceImage    = "{{ .Image.debian }}"
          NetworkTags    = ["nstance-minimal"]
          ServiceAccount = module.cluster.cluster.agent_account
        }
      }
    }
    groups = { default = { web = { template = "web", size = 3 } } }
  }
}
