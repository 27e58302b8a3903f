output "config" {
  description = "The shard's configuration. Upload it: terraform output -raw config | nstance-admin cluster config put."
  value       = jsonencode(local.config)
}

output "servers" {
  description = "Names of the servers' VMs by node."
  value       = { for node, vm in proxmox_virtual_environment_vm.server : node => vm.name }
}
