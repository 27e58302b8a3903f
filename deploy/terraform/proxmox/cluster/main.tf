# The roles, the user and the token of the servers, and a template on each node. The rights are those of docs/proxmox.md.

locals {
  is_one_storage = contains(var.disk_storages, var.iso_storage)

  roles = {
    NstanceVM = [
      "VM.Audit", "VM.Clone", "VM.Allocate", "VM.PowerMgmt", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Disk",
      "VM.Config.CDROM", "VM.Config.Network", "VM.Config.Options",
    ]
    NstanceDisk = ["Datastore.AllocateSpace", "Datastore.Audit"]
    NstanceSeed = concat(
      ["Datastore.AllocateTemplate", "Datastore.Allocate", "Datastore.Audit"],
      local.is_one_storage ? ["Datastore.AllocateSpace"] : [],
    )
    NstanceNode = ["Sys.Audit"]
    NstanceNet  = ["SDN.Use"]
  }

  grants = merge(
    { (var.pool == "" ? "/vms" : "/pool/${var.pool}") = "NstanceVM" },
    { for name in var.disk_storages : "/storage/${name}" => "NstanceDisk" if name != var.iso_storage },
    { "/storage/${var.iso_storage}" = "NstanceSeed", "/nodes" = "NstanceNode", "/sdn/zones" = "NstanceNet" },
  )
}

resource "proxmox_virtual_environment_role" "server" {
  for_each = local.roles

  role_id    = each.key
  privileges = each.value
}

resource "proxmox_virtual_environment_user" "server" {
  user_id = var.user
  comment = "nstance-server"

  lifecycle {
    ignore_changes = [acl] # rights are resources of their own
  }
}

resource "proxmox_virtual_environment_acl" "server" {
  for_each = local.grants

  path      = each.key
  role_id   = proxmox_virtual_environment_role.server[each.value].role_id
  user_id   = proxmox_virtual_environment_user.server.user_id
  propagate = true
}

resource "proxmox_virtual_environment_user_token" "server" {
  user_id               = proxmox_virtual_environment_user.server.user_id
  token_name            = "server"
  comment               = "nstance-server"
  privileges_separation = false # the user has no other use
}

resource "proxmox_virtual_environment_download_file" "image" {
  for_each = toset(var.nodes)

  content_type       = "iso"
  datastore_id       = var.iso_storage
  node_name          = each.key
  url                = var.image.url
  file_name          = "${var.template_name}.img"
  checksum           = var.image.sha512
  checksum_algorithm = "sha512"
}

resource "proxmox_virtual_environment_vm" "template" {
  for_each = { for number, node in var.nodes : node => var.first_template_vmid + number }

  name        = var.template_name
  description = "Template of nstance instances. It has no cloud-init drive: each VM gets an ISO of its own."
  node_name   = each.key
  vm_id       = each.value
  template    = true
  started     = false

  cpu {
    cores = 1
    type  = "host"
  }

  memory {
    dedicated = 512
  }

  disk {
    datastore_id = var.disk_storages[0]
    file_id      = proxmox_virtual_environment_download_file.image[each.key].id
    interface    = "scsi0"
    size         = 4
  }

  network_device {
    bridge = var.bridge
  }

  operating_system {
    type = "l26"
  }

  serial_device {}
}
