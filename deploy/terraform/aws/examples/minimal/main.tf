# One zone, one shard, one group, in the default VPC. See README.md.

terraform {
  required_version = ">= 1.11"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.87, < 7.0"
    }
  }
}

provider "aws" {
  region = var.region
}

variable "region" {
  description = "Region of everything."
  type        = string
  default     = "us-east-1"
}

variable "cluster_id" {
  description = "ID of the cluster."
  type        = string
  default     = "example"
}

variable "bucket_name" {
  description = "Name of the bucket, unique in all of AWS."
  type        = string
}

variable "server_package" {
  description = "URL and checksum of the server's bundle for arm64 (make server-bundle)."
  type        = object({ url = string, sha256 = string })
}

variable "agent" {
  description = "Block agent of the configuration: where instances get the agent's bundle from (make agent-bundle)."
  type        = any
}

variable "image_id" {
  description = "Image of the instances, for arm64."
  type        = string
}

variable "size" {
  description = "Number of instances."
  type        = number
  default     = 3
}

variable "environment" {
  description = "Further environment variables of the server."
  type        = map(string)
  default     = {}
}

variable "server_ami_id" {
  description = "Image of the server. Default: the newest Amazon Linux 2023."
  type        = string
  default     = null
}

variable "shard_settings" {
  description = "Further keys of the block shard of the configuration."
  type        = any
  default     = {}
}

variable "validate_config" {
  description = "Check the configuration with nstance-server before it is uploaded."
  type        = bool
  default     = false
}

variable "tls_only" {
  description = "Set it to false only for a stand-in without TLS."
  type        = bool
  default     = true
}

variable "force_destroy" {
  description = "Let destroy delete the state."
  type        = bool
  default     = true
}

data "aws_vpc" "default" {
  default = true
}

data "aws_subnets" "zone" {
  filter {
    name   = "vpc-id"
    values = [data.aws_vpc.default.id]
  }

  filter {
    name   = "availability-zone"
    values = ["${var.region}a"]
  }
}

module "cluster" {
  source        = "../../cluster"
  cluster_id    = var.cluster_id
  bucket_name   = var.bucket_name
  force_destroy = var.force_destroy
  tls_only      = var.tls_only
}

module "shard" {
  source            = "../../shard"
  cluster           = module.cluster.cluster
  shard_id          = "${var.region}a"
  vpc_id            = data.aws_vpc.default.id
  server_subnet_ids = [data.aws_subnets.zone.ids[0]]
  subnet_pools      = { main = [data.aws_subnets.zone.ids[0]] }
  server_package    = var.server_package
  agent             = var.agent
  environment       = var.environment
  ami_id            = var.server_ami_id
  shard_settings    = var.shard_settings
  validate_config   = var.validate_config

  templates = {
    web = {
      kind          = "web"
      arch          = "arm64"
      instance_type = "t4g.nano"
      userdata      = { base = "agent" }
      args          = { ImageId = var.image_id }
    }
  }
  groups = { default = { web = { template = "web", size = var.size } } }
}

output "cluster" {
  value = module.cluster.cluster
}

output "shard" {
  value = module.shard
}
