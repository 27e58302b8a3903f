output "instance_group" {
  description = "The managed instance group of the servers."
  value       = google_compute_instance_group_manager.server.instance_group
}

output "server_tag" {
  description = "Network tag of the servers, for rules of your own."
  value       = local.tag
}

output "config" {
  description = "The configuration as it is in the bucket."
  value       = local.config
}
