# One shard: a server in an auto-scaling group, its configuration in the bucket, its address and its firewall.

data "aws_region" "current" {}

data "aws_subnet" "server" {
  id = var.server_subnet_ids[0]
}

data "aws_ssm_parameter" "ami" {
  count = var.ami_id == null ? 1 : 0
  name  = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-${var.architecture == "arm64" ? "arm64" : "x86_64"}"
}

locals {
  name = "nstance-${var.cluster.id}-${var.shard_id}"
  # Not nstance:shard: that tag marks the instances that the server manages.
  tags = merge(var.tags, { "nstance:cluster-id" = var.cluster.id, "nstance:server-of" = var.shard_id })

  config = merge(
    {
      cluster = {
        id = var.cluster.id
        secrets = {
          provider       = "object-storage"
          encryption_key = { provider = "aws-secrets-manager", source = var.cluster.encryption_key_secret_arn }
        }
      }
      shard = merge(
        {
          id           = var.shard_id
          infra        = { provider = "aws", region = data.aws_region.current.name, zone = data.aws_subnet.server.availability_zone }
          subnet_pools = var.subnet_pools
        },
        local.leader_ip == null ? {} : {
          leader_network = merge(
            { ip = local.leader_ip },
            var.leader_address.kind == "interface" ? { interface_id = aws_network_interface.leader[0].id } : {},
          )
          # Agents connect to the address that moves with the leader.
          advertise = {
            registration_addr = "${local.leader_ip}:8992"
            operator_addr     = "${local.leader_ip}:8993"
            agent_addr        = "${local.leader_ip}:8994"
          }
        },
        var.shard_settings,
      )
    },
    # Blocks that are empty are left out, so that the file shows only what was chosen.
    { for name, block in local.blocks : name => block if block != null && try(length(block) > 0, true) },
  )

  blocks = {
    tenants        = var.tenants
    images         = var.images
    certificates   = var.certificates
    defaults       = local.defaults
    templates      = var.templates
    groups         = var.groups
    load_balancers = var.load_balancers
    agent          = var.agent
  }

  # Without this security group agents could not reach the servers. A template that names others replaces it.
  defaults = merge(var.defaults, {
    args = merge({ SecurityGroupIds = [aws_security_group.agent.id] }, try(var.defaults.args, {}))
  })

  leader_ip = (
    var.leader_address.kind == "none" ? null :
    var.leader_address.kind == "ip" ? var.leader_address.ip :
    aws_network_interface.leader[0].private_ip
  )

  server_environment = merge(
    { AWS_REGION = data.aws_region.current.name },
    var.environment,
  )
}

# The program says more than a condition could: every fault at once, with its path.
resource "terraform_data" "valid_config" {
  count = var.validate_config ? 1 : 0

  triggers_replace = [sha256(jsonencode(local.config))]

  provisioner "local-exec" {
    command     = "printf '%s' \"$CONFIG\" | nstance-server --validate /dev/stdin --shard ${var.shard_id}"
    environment = { CONFIG = jsonencode(local.config) }
  }
}

resource "aws_s3_object" "config" {
  bucket       = var.cluster.bucket
  key          = "${var.cluster.key_prefix}shard/${var.shard_id}/config.jsonc"
  content      = "${jsonencode(local.config)}\n"
  content_type = "application/json"
  depends_on   = [terraform_data.valid_config]

  lifecycle {
    precondition {
      condition     = length(var.subnet_pools) > 0
      error_message = "Expected at least one subnet pool: without one no group has a place for its instances."
    }
  }
}

resource "aws_network_interface" "leader" {
  count           = var.leader_address.kind == "interface" ? 1 : 0
  subnet_id       = var.server_subnet_ids[0]
  description     = "Leader address of ${local.name}"
  security_groups = [aws_security_group.server.id]
  tags            = merge(local.tags, { Name = "${local.name}-leader" })

  lifecycle {
    ignore_changes = [attachment] # the leader moves it
  }
}

resource "aws_launch_template" "server" {
  name                   = local.name
  image_id               = var.ami_id != null ? var.ami_id : data.aws_ssm_parameter.ami[0].insecure_value
  instance_type          = var.instance_type
  key_name               = var.key_name
  update_default_version = true
  tags                   = local.tags

  user_data = base64encode(templatefile("${path.module}/templates/server.sh", {
    shard       = var.shard_id
    bucket      = var.cluster.bucket
    key_prefix  = var.cluster.key_prefix
    package_url = var.server_package.url
    sha256      = var.server_package.sha256
    environment = local.server_environment
    log_group   = var.log_retention_days > 0 ? aws_cloudwatch_log_group.server[0].name : ""
  }))

  iam_instance_profile {
    name = var.cluster.server_instance_profile
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  network_interfaces {
    device_index          = 0
    delete_on_termination = true
    security_groups       = [aws_security_group.server.id]
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      encrypted             = true
      volume_type           = "gp3"
      volume_size           = 8
      delete_on_termination = true
    }
  }

  # The tag on the interface lets the leader take its address: the policy allows that for tagged interfaces only.
  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume", "network-interface"])

    content {
      resource_type = tag_specifications.value
      tags          = merge(local.tags, { Name = "${local.name}-server" })
    }
  }
}

resource "aws_autoscaling_group" "server" {
  name                      = local.name
  min_size                  = var.desired_capacity
  max_size                  = max(var.desired_capacity, 1)
  desired_capacity          = var.desired_capacity
  vpc_zone_identifier       = var.server_subnet_ids
  target_group_arns         = var.target_group_arns
  health_check_type         = length(var.target_group_arns) > 0 ? "ELB" : "EC2"
  health_check_grace_period = 180
  wait_for_capacity_timeout = "0" # a server that does not start is an alarm, not a failed apply
  enabled_metrics           = ["GroupInServiceInstances"]

  launch_template {
    id      = aws_launch_template.server.id
    version = aws_launch_template.server.latest_version
  }

  instance_refresh {
    strategy = "Rolling"

    preferences {
      min_healthy_percentage = 0 # instances keep running while there is no server
    }
  }

  dynamic "tag" {
    for_each = merge(local.tags, { Name = "${local.name}-server" })

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = false # the launch template tags them
    }
  }

  depends_on = [aws_s3_object.config]
}
