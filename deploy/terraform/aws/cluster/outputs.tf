output "cluster" {
  description = "What the shard module takes as its input `cluster`."
  value = {
    id                        = var.cluster_id
    bucket                    = aws_s3_bucket.state.bucket
    key_prefix                = var.key_prefix
    encryption_key_secret_arn = local.encryption_key.secret_arn
    server_instance_profile   = aws_iam_instance_profile.server.name
    agent_instance_profile    = aws_iam_instance_profile.agent.arn
  }

  # A server must not start before its permissions are there.
  depends_on = [aws_iam_role_policy.server, aws_s3_bucket_policy.state]
}

output "bucket_arn" {
  description = "ARN of the bucket."
  value       = aws_s3_bucket.state.arn
}

output "server_role_name" {
  description = "Role of the servers, for further policies."
  value       = aws_iam_role.server.name
}

output "server_policy" {
  description = "All permissions of the servers, as JSON."
  value       = aws_iam_role_policy.server.policy
}

output "agent_role_name" {
  description = "Role of the instances, for your own policies."
  value       = aws_iam_role.agent.name
}

output "kms_key_arn" {
  description = "Key that encrypts the encryption key."
  value       = local.encryption_key.kms_key_arn
}
