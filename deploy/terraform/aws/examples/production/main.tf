# Three zones, three shards, each with a standby, in your own VPC. See README.md.

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
}

variable "cluster_id" {
  description = "ID of the cluster."
  type        = string
}

variable "bucket_name" {
  description = "Name of the bucket, unique in all of AWS."
  type        = string
}

variable "vpc_id" {
  description = "VPC with private subnets and a way to AWS (NAT gateway or endpoints for S3, EC2, Secrets Manager, Logs)."
  type        = string
}

variable "zones" {
  description = "Zone to its subnets: one for the servers, any number for the instances."
  type        = map(object({ server_subnet_id = string, instance_subnet_ids = list(string) }))
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

variable "target_group_arns" {
  description = "Target groups in which instances are registered."
  type        = list(string)
  default     = []
}

variable "server_package" {
  description = "URL and checksum of the server's bundle for arm64."
  type        = object({ url = string, sha256 = string })
}

variable "agent_sha256" {
  description = "Checksums of the agent's bundles in the bucket: amd64 and arm64."
  type        = map(string)
}

variable "alarm_email" {
  description = "Who gets the alarms."
  type        = string
}

resource "aws_sns_topic" "alarms" {
  name = "nstance-${var.cluster_id}"
}

resource "aws_sns_topic_subscription" "alarms" {
  topic_arn = aws_sns_topic.alarms.arn
  protocol  = "email"
  endpoint  = var.alarm_email
}

module "cluster" {
  source            = "../../cluster"
  cluster_id        = var.cluster_id
  bucket_name       = var.bucket_name
  target_group_arns = var.target_group_arns
}

module "shard" {
  source   = "../../shard"
  for_each = var.zones

  cluster           = module.cluster.cluster
  shard_id          = each.key
  vpc_id            = var.vpc_id
  server_subnet_ids = [each.value.server_subnet_id]
  subnet_pools      = { main = each.value.instance_subnet_ids }
  server_package    = var.server_package
  instance_type     = "t4g.small"
  desired_capacity  = 2
  operator_cidrs    = var.operator_cidrs
  metrics_cidrs     = var.metrics_cidrs
  alarm_topic_arns  = [aws_sns_topic.alarms.arn]

  # Signed by the servers: instances need no permission to download it.
  agent = { object = "agents/nstance-agent-linux-{arch}.tar.gz", sha256 = var.agent_sha256 }

  images = {
    debian_13_arm64 = {
      owners  = ["136693071363"]
      filters = [{ name = "name", values = ["debian-13-arm64-*"] }]
    }
  }

  templates = {
    worker = {
      kind          = "wrk"
      arch          = "arm64"
      instance_type = "m7g.large"
      userdata      = { base = "agent" }
      args = {
        ImageId            = "{{ .Image.debian_13_arm64 }}"
        IamInstanceProfile = { Arn = module.cluster.cluster.agent_instance_profile }
      }
    }
  }
  groups = { default = { workers = { template = "worker", size = 3, update = { max_surge = 1 } } } }
}

output "shards" {
  description = "Where operators connect, by zone."
  value       = { for zone, shard in module.shard : zone => "${shard.leader_ip}:8993" }
}

output "register_operator" {
  description = "Creates the nonce with which the operator registers. Run it with the servers' permissions."
  value       = "nstance-admin cluster nonce --cluster-id ${var.cluster_id} --storage-bucket ${var.bucket_name} --key-provider aws-secrets-manager --key-source ${module.cluster.cluster.encryption_key_secret_arn} --output nonce.jwt"
}
