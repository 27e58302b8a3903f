# Every permission of the servers. docs/gcp.md says what each one is for.

resource "google_project_iam_custom_role" "server" {
  project     = var.project_id
  role_id     = "nstance_${replace(var.cluster_id, "-", "_")}_server"
  title       = "Nstance server of ${var.cluster_id}"
  description = "Creates, watches and deletes the instances of the cluster"

  permissions = [
    "compute.disks.create",
    "compute.disks.setLabels",
    "compute.images.get",
    "compute.images.getFromFamily",
    "compute.images.list",
    "compute.images.useReadOnly",
    "compute.instanceGroups.get",
    "compute.instanceGroups.update",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.getSerialPortOutput",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setServiceAccount",
    "compute.instances.setTags",
    "compute.instances.updateNetworkInterface",
    "compute.instances.use",
    "compute.machineTypes.get",
    "compute.subnetworks.get",
    "compute.subnetworks.use",
    "compute.zoneOperations.get",
    "compute.zoneOperations.list",
    "compute.zones.get",
  ]
}

resource "google_project_iam_member" "server" {
  project = var.project_id
  role    = google_project_iam_custom_role.server.name
  member  = google_service_account.server.member
}

resource "google_project_iam_member" "logs" {
  project = var.project_id
  role    = "roles/logging.logWriter"
  member  = google_service_account.server.member
}

resource "google_storage_bucket_iam_member" "server" {
  bucket = google_storage_bucket.state.name
  role   = "roles/storage.objectUser"
  member = google_service_account.server.member
}

resource "google_secret_manager_secret_iam_member" "server" {
  project   = var.project_id
  secret_id = google_secret_manager_secret.encryption_key.secret_id
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.server.member
}

# Signs the URLs by which instances fetch the agent from the bucket.
resource "google_service_account_iam_member" "signer" {
  service_account_id = google_service_account.server.name
  role               = "roles/iam.serviceAccountTokenCreator"
  member             = google_service_account.server.member
}

resource "google_service_account_iam_member" "agent" {
  service_account_id = google_service_account.agent.name
  role               = "roles/iam.serviceAccountUser"
  member             = google_service_account.server.member
}

resource "google_service_account_iam_member" "passed" {
  for_each           = toset(var.passed_service_accounts)
  service_account_id = "projects/${var.project_id}/serviceAccounts/${each.value}"
  role               = "roles/iam.serviceAccountUser"
  member             = google_service_account.server.member
}
