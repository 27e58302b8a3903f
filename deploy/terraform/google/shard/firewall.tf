# 8990: health and metrics, 8991: election, 8992: registration, 8993: operators, 8994: agents

resource "google_compute_firewall" "health" {
  project       = var.cluster.project_id
  name          = "${local.name}-health"
  network       = var.network
  source_ranges = concat(["35.191.0.0/16", "130.211.0.0/22"], var.metrics_cidrs) # Google's health checks
  target_tags   = [local.tag]

  allow {
    protocol = "tcp"
    ports    = ["8990"]
  }
}

resource "google_compute_firewall" "peers" {
  project     = var.cluster.project_id
  name        = "${local.name}-peers"
  network     = var.network
  source_tags = [local.tag]
  target_tags = [local.tag]

  allow {
    protocol = "tcp"
    ports    = ["8991"]
  }
}

resource "google_compute_firewall" "agents" {
  count       = length(var.agent_tags) > 0 ? 1 : 0
  project     = var.cluster.project_id
  name        = "${local.name}-agents"
  network     = var.network
  source_tags = var.agent_tags
  target_tags = [local.tag]

  allow {
    protocol = "tcp"
    ports    = ["8992", "8994"]
  }
}

resource "google_compute_firewall" "operators" {
  count         = length(var.operator_cidrs) > 0 ? 1 : 0
  project       = var.cluster.project_id
  name          = "${local.name}-operators"
  network       = var.network
  source_ranges = var.operator_cidrs
  target_tags   = [local.tag]

  allow {
    protocol = "tcp"
    ports    = ["8993"]
  }
}
