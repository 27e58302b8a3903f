output "config" {
  description = "The shard's configuration, as it is in the bucket."
  value       = local.config
}

output "config_key" {
  description = "Key of the configuration in the bucket."
  value       = aws_s3_object.config.key
}

output "leader_ip" {
  description = "Address of the leader; null with the kind none."
  value       = local.leader_ip
}

output "server_security_group_id" {
  description = "Security group of the servers."
  value       = aws_security_group.server.id
}

output "agent_security_group_id" {
  description = "Security group of the instances, by default. A template with args.SecurityGroupIds or args.NetworkInterfaces must name it too."
  value       = aws_security_group.agent.id
}

output "autoscaling_group_name" {
  description = "Auto-scaling group of the servers."
  value       = aws_autoscaling_group.server.name
}

output "launch_template_id" {
  description = "Launch template of the servers."
  value       = aws_launch_template.server.id
}

output "log_group_name" {
  description = "Log group of the servers; null without one."
  value       = one(aws_cloudwatch_log_group.server[*].name)
}
