output "cluster" {
  description = "For the shard modules."
  value = {
    id                    = var.cluster_id
    project_id            = var.project_id
    bucket                = google_storage_bucket.state.name
    encryption_key_secret = google_secret_manager_secret.encryption_key.id
    server_account        = google_service_account.server.email
    agent_account         = google_service_account.agent.email
  }
}
