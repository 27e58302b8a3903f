# Against a stand-in for AWS (AWS_ENDPOINT_URL), because mocked providers have no ephemeral resources. `make test-terraform`
# runs it.

provider "aws" {
  region                      = "us-east-1"
  access_key                  = "test"
  secret_key                  = "test"
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  s3_use_path_style           = true
}

variables {
  cluster_id    = "demo"
  bucket_name   = "demo-state"
  force_destroy = true
}

run "defaults" {
  command = apply

  assert {
    condition     = aws_s3_bucket_versioning.state.versioning_configuration[0].status == "Enabled"
    error_message = "The bucket must be versioned."
  }
  assert {
    condition     = aws_s3_bucket_public_access_block.state.block_public_policy && aws_s3_bucket_public_access_block.state.restrict_public_buckets
    error_message = "The bucket must not be public."
  }
  assert {
    condition     = length(module.encryption_key) == 1 && startswith(output.cluster.encryption_key_secret_arn, "arn:aws:secretsmanager:")
    error_message = "A key must be created."
  }
  assert {
    condition     = !strcontains(aws_iam_role_policy.server.policy, "elasticloadbalancing")
    error_message = "Without target groups there must be no permission for them."
  }
  assert {
    condition     = alltrue([for statement in jsondecode(aws_iam_role_policy.server.policy).Statement : !contains(statement.Action, "*") && !strcontains(join(",", statement.Action), ":*")])
    error_message = "Every permission must be named."
  }
  assert {
    condition     = alltrue([for statement in jsondecode(aws_iam_role_policy.server.policy).Statement : contains(["Describe"], statement.Sid) if contains(statement.Resource, "*")])
    error_message = "Only describing may concern all resources."
  }
}

run "with_prefix_and_target_groups" {
  command = apply

  variables {
    key_prefix        = "nstance/"
    target_group_arns = ["arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/web/1"]
    passed_role_arns  = ["arn:aws:iam::123456789012:role/web"]
  }

  assert {
    condition     = output.cluster.key_prefix == "nstance/"
    error_message = "The prefix must reach the shards."
  }
  assert {
    condition = one([
      for statement in jsondecode(aws_iam_role_policy.server.policy).Statement : statement.Resource if statement.Sid == "ReadAndWriteState"
    ]) == ["arn:aws:s3:::demo-state/nstance/*"]
    error_message = "Only objects below the prefix may be touched."
  }
  assert {
    condition = one([
      for statement in jsondecode(aws_iam_role_policy.server.policy).Statement : length(statement.Resource) if statement.Sid == "PassListedRoles"
    ]) == 2
    error_message = "Only the listed roles may be passed."
  }
  assert {
    # The tests of the server take each permission of this file away.
    condition = jsonencode(jsondecode(replace(
      replace(aws_iam_role_policy.server.policy, output.cluster.encryption_key_secret_arn, "SECRET_ARN"),
      module.encryption_key[0].kms_key_arn, "KMS_KEY_ARN",
    ))) == jsonencode(jsondecode(file("${path.module}/tests/server-policy.json")))
    error_message = "tests/server-policy.json must be the policy as it is rendered here."
  }
}

run "given_key" {
  command = plan

  variables {
    cluster_id     = "other"
    bucket_name    = "other-state"
    force_destroy  = false
    encryption_key = { secret_arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:key" }
  }

  assert {
    condition     = length(module.encryption_key) == 0 && output.cluster.encryption_key_secret_arn == "arn:aws:secretsmanager:us-east-1:123456789012:secret:key"
    error_message = "A key that exists must be used."
  }
  assert {
    condition     = !aws_s3_bucket.state.force_destroy
    error_message = "Destroy must not delete the state."
  }
}

run "wrong_ids" {
  command = plan

  variables {
    cluster_id = "Demo_1"
    key_prefix = "nstance"
  }

  expect_failures = [var.cluster_id, var.key_prefix]
}
