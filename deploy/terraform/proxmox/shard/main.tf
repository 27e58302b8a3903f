# The servers of a shard as VMs, one on each of the nodes, and the shard's configuration.

locals {
  config = {
    cluster = { id = var.cluster_id }
    shard = merge(var.shard_settings, {
      infra = {
        provider = "proxmox"
        options = merge(
          {
            api_url     = var.api_url
            ca_file     = "/etc/nstance/pve-root-ca.pem"
            token_id    = var.cluster.token_id
            iso_storage = var.cluster.iso_storage
          },
          var.cluster.pool == "" ? {} : { pool = var.cluster.pool },
          var.options,
        )
      }
    })
    load_balancers = var.load_balancers
    defaults       = { args = { TemplateName = var.cluster.template_name, StoragePool = var.cluster.disk_storages } }
    templates      = var.templates
    groups         = var.groups
  }

  userdata = {
    write_files = [
      { path = "/etc/nstance/pve-root-ca.pem", content = var.ca_certificate, permissions = "0644" },
      {
        path        = "/etc/nstance-server.env"
        content     = join("", [for name, value in var.environment : "${name}=${value}\n"])
        permissions = "0600"
      },
      {
        path        = "/usr/local/sbin/install-nstance-server"
        content     = file("${path.module}/../../../proxmox/install-server.sh")
        permissions = "0755"
      },
    ]
    packages = ["curl"]
    runcmd = [[
      "env", "PACKAGE_URL=${var.server_package.url}", "PACKAGE_SHA256=${var.server_package.sha256}",
      "SHARD=${var.shard_id}", "STORAGE=s3", "BUCKET=${var.bucket}", "/usr/local/sbin/install-nstance-server",
    ]]
  }
}

resource "proxmox_virtual_environment_file" "userdata" {
  for_each = toset(var.server_nodes)

  content_type = "snippets"
  datastore_id = var.snippet_storage
  node_name    = each.key

  source_raw {
    file_name = "nstance-server-${var.shard_id}.yaml"
    data      = "#cloud-config\n${yamlencode(local.userdata)}"
  }
}

locals {
  # The template of the server's own node. With shared storage the only template serves all nodes.
  template_node = {
    for node in var.server_nodes :
    node => contains(keys(var.cluster.template_vmids), node) ? node : keys(var.cluster.template_vmids)[0]
  }
}

resource "proxmox_virtual_environment_vm" "server" {
  for_each = toset(var.server_nodes)

  name        = "nstance-server-${var.shard_id}-${each.key}"
  description = "Nstance server of shard ${var.shard_id}"
  node_name   = each.key
  on_boot     = true

  clone {
    vm_id        = var.cluster.template_vmids[local.template_node[each.key]]
    node_name    = local.template_node[each.key]
    datastore_id = var.cluster.disk_storages[0]
  }

  cpu {
    cores = 1
    type  = "host"
  }

  memory {
    dedicated = 1024
  }

  network_device {
    bridge = var.bridge
  }

  initialization {
    datastore_id      = var.cluster.disk_storages[0]
    user_data_file_id = proxmox_virtual_environment_file.userdata[each.key].id

    ip_config {
      ipv4 {
        address = "dhcp"
      }
    }
  }
}
