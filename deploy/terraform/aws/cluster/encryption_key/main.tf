# The key that seals the cluster's secrets.

resource "aws_kms_key" "cluster" {
  description             = "Nstance cluster ${var.cluster_id}: encrypts the encryption key"
  enable_key_rotation     = true
  deletion_window_in_days = var.force_destroy ? 7 : 30
  tags                    = var.tags
}

resource "aws_kms_alias" "cluster" {
  name          = "alias/nstance-${var.cluster_id}"
  target_key_id = aws_kms_key.cluster.key_id
}

resource "aws_secretsmanager_secret" "encryption_key" {
  name                    = "nstance/${var.cluster_id}/encryption-key"
  description             = "Seals the CA and the secrets of the Nstance cluster ${var.cluster_id}. Without it they are lost."
  kms_key_id              = aws_kms_key.cluster.arn
  recovery_window_in_days = var.force_destroy ? 0 : 30
  tags                    = var.tags
}

# 64 hexadecimal digits: 32 random bytes. The value is in Secrets Manager only, not in the state.
ephemeral "aws_secretsmanager_random_password" "encryption_key" {
  password_length            = 64
  exclude_punctuation        = true
  exclude_uppercase          = true
  require_each_included_type = false
  exclude_characters         = "ghijklmnopqrstuvwxyz"
}

resource "aws_secretsmanager_secret_version" "encryption_key" {
  secret_id                = aws_secretsmanager_secret.encryption_key.id
  secret_string_wo         = ephemeral.aws_secretsmanager_random_password.encryption_key.random_password
  secret_string_wo_version = var.key_version
}

variable "cluster_id" {
  type = string
}

variable "key_version" {
  type = number
}

variable "force_destroy" {
  type = bool
}

variable "tags" {
  type = map(string)
}

output "secret_arn" {
  value      = aws_secretsmanager_secret.encryption_key.arn
  depends_on = [aws_secretsmanager_secret_version.encryption_key]
}

output "kms_key_arn" {
  value = aws_kms_key.cluster.arn
}
