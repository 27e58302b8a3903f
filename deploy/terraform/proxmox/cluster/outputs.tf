output "cluster" {
  description = "What the shard module needs."
  value = {
    template_name  = var.template_name
    template_vmids = { for node, vm in proxmox_virtual_environment_vm.template : node => vm.vm_id }
    disk_storages  = var.disk_storages
    iso_storage    = var.iso_storage
    pool           = var.pool
    token_id       = "${var.user}!${proxmox_virtual_environment_user_token.server.token_name}"
  }
}

output "token_secret" {
  description = "The secret of the token. It is also in Terraform's state: protect both."
  # The provider shows "USER!TOKEN=SECRET".
  value     = element(split("=", proxmox_virtual_environment_user_token.server.value), 1)
  sensitive = true
}
