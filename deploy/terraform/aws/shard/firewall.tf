resource "aws_security_group" "server" {
  name        = "${local.name}-server"
  description = "Servers of the shard ${var.shard_id}"
  vpc_id      = var.vpc_id
  tags        = merge(local.tags, { Name = "${local.name}-server" })
}

resource "aws_security_group" "agent" {
  name        = "${local.name}-agent"
  description = "Instances of the shard ${var.shard_id}: their agents may connect to the servers"
  vpc_id      = var.vpc_id
  tags        = merge(local.tags, { Name = "${local.name}-agent" })
}

locals {
  agent_groups = merge(
    { module = aws_security_group.agent.id },
    { for index, id in var.agent_security_group_ids : "given-${index}" => id },
  )
  # 8992: registration, 8994: agents
  agent_rules = merge([
    for name, id in local.agent_groups : { for port in [8992, 8994] : "${name}-${port}" => { group = id, port = port } }
  ]...)
  # 8990: health and metrics, 8993: operators
  network_rules = merge(
    { for cidr in var.metrics_cidrs : "metrics-${cidr}" => { cidr = cidr, port = 8990 } },
    { for cidr in var.operator_cidrs : "operator-${cidr}" => { cidr = cidr, port = 8993 } },
  )
}

resource "aws_vpc_security_group_ingress_rule" "agents" {
  for_each                     = local.agent_rules
  security_group_id            = aws_security_group.server.id
  referenced_security_group_id = each.value.group
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
  description                  = each.value.port == 8992 ? "registration of instances" : "agents"
}

resource "aws_vpc_security_group_ingress_rule" "networks" {
  for_each          = local.network_rules
  security_group_id = aws_security_group.server.id
  cidr_ipv4         = each.value.cidr
  ip_protocol       = "tcp"
  from_port         = each.value.port
  to_port           = each.value.port
  description       = each.value.port == 8990 ? "health and metrics" : "operators"
}

resource "aws_vpc_security_group_ingress_rule" "peers" {
  security_group_id            = aws_security_group.server.id
  referenced_security_group_id = aws_security_group.server.id
  ip_protocol                  = "tcp"
  from_port                    = 8991
  to_port                      = 8991
  description                  = "election: heartbeats between the servers of the shard"
}

resource "aws_vpc_security_group_egress_rule" "server" {
  security_group_id = aws_security_group.server.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
  description       = "AWS, and userdata from URLs"
}

resource "aws_vpc_security_group_egress_rule" "agent" {
  security_group_id = aws_security_group.agent.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
  description       = "servers, and what the instances need themselves"
}
