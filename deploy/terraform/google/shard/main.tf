# One shard: a server in a managed instance group, its configuration in the bucket, its health check and its firewall.

locals {
  name = "nstance-${var.cluster.id}-${var.shard_id}"
  tag  = "${local.name}-server"
  # Not nstance-shard: that label marks the instances that the server manages.
  labels = merge(var.labels, { "nstance-cluster-id" = var.cluster.id, "nstance-server-of" = var.shard_id })

  config = merge(
    {
      cluster = {
        id = var.cluster.id
        secrets = {
          provider       = "object-storage"
          encryption_key = { provider = "google-secret-manager", source = var.cluster.encryption_key_secret }
        }
      }
      shard = merge(
        {
          id = var.shard_id
          infra = {
            provider = "gcp"
            zone     = var.zone
            options  = { project_id = var.cluster.project_id }
          }
          subnet_pools = var.subnet_pools
        },
        var.leader_ip == null ? {} : {
          leader_network = { ip = var.leader_ip }
          # Agents connect to the address that moves with the leader.
          advertise = {
            registration_addr = "${var.leader_ip}:8992"
            operator_addr     = "${var.leader_ip}:8993"
            agent_addr        = "${var.leader_ip}:8994"
          }
        },
        var.shard_settings,
      )
    },
    var.settings,
  )
}

resource "google_storage_bucket_object" "config" {
  bucket       = var.cluster.bucket
  name         = "shard/${var.shard_id}/config.jsonc"
  content      = "${jsonencode(local.config)}\n"
  content_type = "application/json"

  lifecycle {
    precondition {
      condition     = length(var.subnet_pools) > 0
      error_message = "Expected at least one subnet pool: without one no group has a place for its instances."
    }
  }
}

resource "google_compute_instance_template" "server" {
  project      = var.cluster.project_id
  name_prefix  = "${substr(local.name, 0, 36)}-"
  machine_type = var.machine_type
  region       = join("-", slice(split("-", var.zone), 0, 2))
  tags         = [local.tag]
  labels       = local.labels

  disk {
    source_image = var.image
    boot         = true
    auto_delete  = true
    disk_size_gb = 10
    disk_type    = "pd-balanced"
    labels       = local.labels
  }

  network_interface {
    subnetwork = var.server_subnetwork
  }

  service_account {
    email  = var.cluster.server_account
    scopes = ["cloud-platform"]
  }

  shielded_instance_config {
    enable_secure_boot = true
  }

  metadata = {
    startup-script = templatefile("${path.module}/templates/server.sh", {
      shard       = var.shard_id
      bucket      = var.cluster.bucket
      package_url = var.server_package.url
      sha256      = var.server_package.sha256
      environment = merge({ GOOGLE_CLOUD_PROJECT = var.cluster.project_id }, var.environment)
    })
  }

  lifecycle {
    create_before_destroy = true
  }
}

# A leader and a standby are both healthy here: only a server without a valid configuration is not.
resource "google_compute_health_check" "server" {
  project             = var.cluster.project_id
  name                = local.name
  check_interval_sec  = 10
  timeout_sec         = 5
  healthy_threshold   = 1
  unhealthy_threshold = 6

  http_health_check {
    port         = 8990
    request_path = "/health"
  }
}

resource "google_compute_instance_group_manager" "server" {
  project            = var.cluster.project_id
  name               = local.name
  zone               = var.zone
  base_instance_name = substr(local.name, 0, 58)
  target_size        = var.desired_capacity

  version {
    instance_template = google_compute_instance_template.server.self_link_unique
  }

  auto_healing_policies {
    health_check      = google_compute_health_check.server.id
    initial_delay_sec = 300
  }

  update_policy {
    type                  = "PROACTIVE"
    minimal_action        = "REPLACE"
    max_surge_fixed       = 0 # instances keep running while there is no server
    max_unavailable_fixed = 1
  }

  depends_on = [google_storage_bucket_object.config]
}
