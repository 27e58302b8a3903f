# What the shards of a cluster share: the bucket, the encryption key, and the service accounts of servers and instances.

locals {
  labels = merge(var.labels, { "nstance-cluster-id" = var.cluster_id })
}

resource "google_storage_bucket" "state" {
  project                     = var.project_id
  name                        = var.bucket_name
  location                    = var.location
  force_destroy               = var.force_destroy
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  labels                      = local.labels

  versioning {
    enabled = true
  }

  lifecycle_rule {
    action {
      type = "Delete"
    }

    condition {
      days_since_noncurrent_time = var.noncurrent_version_days
    }
  }
}

# Seals the CA and the secrets of the cluster. Without it they are lost.
resource "google_secret_manager_secret" "encryption_key" {
  project   = var.project_id
  secret_id = "nstance-${var.cluster_id}-encryption-key"
  labels    = local.labels

  replication {
    auto {}
  }
}

# 64 digits of 32 bytes. The value is in Secret Manager only, not in the state.
ephemeral "random_password" "encryption_key" {
  length           = 64
  lower            = false
  upper            = false
  numeric          = true
  special          = true
  override_special = "abcdef"
}

resource "google_secret_manager_secret_version" "encryption_key" {
  secret                 = google_secret_manager_secret.encryption_key.id
  secret_data_wo         = ephemeral.random_password.encryption_key.result
  secret_data_wo_version = var.encryption_key_version
}

resource "google_service_account" "server" {
  project      = var.project_id
  account_id   = "nstance-${var.cluster_id}-srv"
  display_name = "Servers of the Nstance cluster ${var.cluster_id}"
}

# The agent needs no permission at all. The account is there so that instances have an identity to which you can grant yours.
resource "google_service_account" "agent" {
  project      = var.project_id
  account_id   = "nstance-${var.cluster_id}-agt"
  display_name = "Instances of the Nstance cluster ${var.cluster_id}"
}
