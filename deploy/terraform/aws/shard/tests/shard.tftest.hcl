# What the module plans, without AWS. `make test-terraform` runs it.

mock_provider "aws" {
  mock_data "aws_region" {
    defaults = { name = "us-east-1" }
  }
  mock_data "aws_subnet" {
    defaults = { availability_zone = "us-east-1a" }
  }
  mock_data "aws_ssm_parameter" {
    defaults = { insecure_value = "ami-0123456789abcdef0" }
  }
  mock_resource "aws_launch_template" {
    defaults = { id = "lt-0123456789abcdef0", latest_version = 1 }
  }
  mock_resource "aws_security_group" {
    defaults = { id = "sg-0123456789abcdef0" }
  }
  mock_resource "aws_network_interface" {
    defaults = { id = "eni-0123456789abcdef0", private_ip = "10.0.0.9" }
  }
}

variables {
  cluster = {
    id                        = "demo"
    bucket                    = "demo-state"
    key_prefix                = ""
    encryption_key_secret_arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:key"
    server_instance_profile   = "nstance-demo-server"
    agent_instance_profile    = "arn:aws:iam::123456789012:instance-profile/nstance-demo-agent"
  }
  shard_id          = "us-east-1a"
  vpc_id            = "vpc-0123456789abcdef0"
  server_subnet_ids = ["subnet-0123456789abcdef0"]
  subnet_pools      = { main = ["subnet-0123456789abcdef0"] }
  server_package = {
    url    = "https://example.com/server.tar.gz"
    sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
  }
  templates = { web = { kind = "web", args = { ImageId = "ami-0123456789abcdef0" } } }
  groups    = { default = { web = { template = "web", size = 3 } } }
}

run "defaults" {
  command = apply

  assert {
    condition     = aws_s3_object.config.key == "shard/us-east-1a/config.jsonc"
    error_message = "The configuration must be where the server looks for it."
  }
  assert {
    condition     = jsondecode(aws_s3_object.config.content).shard.leader_network.interface_id == "eni-0123456789abcdef0"
    error_message = "The leader must move the interface."
  }
  assert {
    condition     = jsondecode(aws_s3_object.config.content).shard.advertise.agent_addr == "10.0.0.9:8994"
    error_message = "Agents must connect to the address that moves."
  }
  assert {
    condition     = join(",", keys(jsondecode(aws_s3_object.config.content))) == "cluster,defaults,groups,shard,templates"
    error_message = "Empty blocks must be left out."
  }
  assert {
    condition     = jsondecode(aws_s3_object.config.content).defaults == { args = { SecurityGroupIds = [aws_security_group.agent.id] } }
    error_message = "Agents must be able to connect to the servers."
  }
  assert {
    condition     = aws_launch_template.server.metadata_options[0].http_tokens == "required" && aws_launch_template.server.block_device_mappings[0].ebs[0].encrypted == "true"
    error_message = "IMDSv2 and encrypted disks are the default."
  }
  assert {
    condition     = aws_autoscaling_group.server.desired_capacity == 1 && aws_autoscaling_group.server.health_check_type == "EC2"
    error_message = "One server by default."
  }
  assert {
    condition     = toset([for rule in aws_vpc_security_group_ingress_rule.agents : rule.from_port]) == toset([8992, 8994]) && length(aws_vpc_security_group_ingress_rule.networks) == 0
    error_message = "By default only agents and peers may connect."
  }
  assert {
    condition     = strcontains(base64decode(aws_launch_template.server.user_data), "--shard us-east-1a --bucket demo-state --log-json")
    error_message = "The server must be started for this shard."
  }
  assert {
    condition     = length(aws_cloudwatch_metric_alarm.no_server) == 0 && length(aws_cloudwatch_log_group.server) == 1
    error_message = "Logs by default, alarms on request."
  }
}

run "production" {
  command = apply

  variables {
    desired_capacity  = 2
    leader_address    = { kind = "ip", ip = "10.0.0.10" }
    operator_cidrs    = ["10.1.0.0/16"]
    metrics_cidrs     = ["10.2.0.0/16"]
    target_group_arns = ["arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/health/0123456789abcdef"]
    alarm_topic_arns  = ["arn:aws:sns:us-east-1:123456789012:alarms"]
    shard_settings    = { health_check_interval = "30s" }
    defaults          = { vars = { color = "blue" }, args = { SecurityGroupIds = ["sg-1"], KeyName = "ops" } }
  }

  assert {
    condition     = jsondecode(aws_s3_object.config.content).defaults == { vars = { color = "blue" }, args = { SecurityGroupIds = ["sg-1"], KeyName = "ops" } }
    error_message = "Given defaults must win."
  }

  assert {
    condition     = jsondecode(aws_s3_object.config.content).shard.leader_network == { ip = "10.0.0.10" } && length(aws_network_interface.leader) == 0
    error_message = "A secondary IP needs no interface."
  }
  assert {
    condition     = aws_autoscaling_group.server.max_size == 2 && aws_autoscaling_group.server.health_check_type == "ELB"
    error_message = "A standby, and the load balancer's health check."
  }
  assert {
    condition     = toset([for rule in aws_vpc_security_group_ingress_rule.networks : rule.from_port]) == toset([8990, 8993])
    error_message = "Operators and metrics must be able to connect."
  }
  assert {
    condition     = length(aws_cloudwatch_metric_alarm.no_server) == 1 && length(aws_cloudwatch_metric_alarm.errors) == 1
    error_message = "Both alarms must be there."
  }
  assert {
    condition     = jsondecode(aws_s3_object.config.content).shard.health_check_interval == "30s"
    error_message = "Further settings must reach the configuration."
  }
}

run "scaled_to_zero" {
  command = apply

  variables {
    desired_capacity = 0
    alarm_topic_arns = ["arn:aws:sns:us-east-1:123456789012:alarms"]
  }

  assert {
    condition     = aws_autoscaling_group.server.desired_capacity == 0 && length(aws_cloudwatch_metric_alarm.no_server) == 0
    error_message = "A stopped shard is no alarm."
  }
}

run "wrong_inputs" {
  command = plan

  variables {
    shard_id         = "us_east"
    desired_capacity = 3
    leader_address   = { kind = "ip" }
    server_package   = { url = "ftp://example.com", sha256 = "x" }
  }

  expect_failures = [var.shard_id, var.desired_capacity, var.leader_address, var.server_package]
}
