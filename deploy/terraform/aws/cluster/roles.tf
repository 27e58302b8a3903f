locals {
  assume_from_ec2 = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })

  ec2     = "arn:${data.aws_partition.current.partition}:ec2:*:${data.aws_caller_identity.current.account_id}"
  ours    = { StringEquals = { "aws:ResourceTag/nstance:cluster-id" = var.cluster_id } }
  made_by = { StringEquals = { "aws:RequestTag/nstance:cluster-id" = var.cluster_id } }

  # Every permission of the servers. docs/aws-permissions.md says what each one is for and what fails without it.
  server_statements = concat(
    [
      {
        Sid       = "ListState"
        Action    = ["s3:ListBucket"]
        Resource  = [aws_s3_bucket.state.arn]
        Condition = var.key_prefix == "" ? {} : { StringLike = { "s3:prefix" = ["${var.key_prefix}*"] } }
      },
      {
        Sid      = "ReadAndWriteState"
        Action   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
        Resource = ["${aws_s3_bucket.state.arn}/${var.key_prefix}*"]
      },
      {
        Sid      = "ReadEncryptionKey"
        Action   = ["secretsmanager:GetSecretValue"]
        Resource = [local.encryption_key.secret_arn]
      },
      {
        Sid       = "CreateTaggedInstances"
        Action    = ["ec2:RunInstances"]
        Resource  = ["${local.ec2}:instance/*", "${local.ec2}:volume/*", "${local.ec2}:network-interface/*"]
        Condition = local.made_by
      },
      {
        Sid    = "CreateInstancesFrom"
        Action = ["ec2:RunInstances"]
        Resource = [
          "arn:${data.aws_partition.current.partition}:ec2:*::image/*",
          "arn:${data.aws_partition.current.partition}:ec2:*::snapshot/*",
          "${local.ec2}:image/*", "${local.ec2}:snapshot/*", "${local.ec2}:subnet/*", "${local.ec2}:security-group/*",
          "${local.ec2}:key-pair/*", "${local.ec2}:launch-template/*", "${local.ec2}:placement-group/*",
          "${local.ec2}:capacity-reservation/*",
          "${local.ec2}:spot-instances-request/*", # a spot instance is launched through a request
        ]
      },
      {
        Sid    = "TagNewInstances"
        Action = ["ec2:CreateTags"]
        Resource = [
          "${local.ec2}:instance/*", "${local.ec2}:volume/*", "${local.ec2}:network-interface/*",
          "${local.ec2}:spot-instances-request/*", # if args.TagSpecifications of a template names them
        ]
        Condition = { StringEquals = { "ec2:CreateAction" = "RunInstances" } }
      },
      {
        Sid       = "DeleteOwnInstances"
        Action    = ["ec2:TerminateInstances", "ec2:GetConsoleOutput"]
        Resource  = ["${local.ec2}:instance/*"]
        Condition = local.ours
      },
      {
        Sid      = "Describe"
        Action   = ["ec2:DescribeImages", "ec2:DescribeInstances", "ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets"]
        Resource = ["*"]
      },
      {
        Sid = "MoveLeaderAddress"
        Action = [
          "ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses", "ec2:AssignIpv6Addresses",
          "ec2:UnassignIpv6Addresses", "ec2:AttachNetworkInterface", "ec2:DetachNetworkInterface",
        ]
        Resource  = ["${local.ec2}:network-interface/*", "${local.ec2}:instance/*"]
        Condition = local.ours
      },
      {
        Sid       = "PassListedRoles"
        Action    = ["iam:PassRole"]
        Resource  = concat([aws_iam_role.agent.arn], var.passed_role_arns)
        Condition = { StringEquals = { "iam:PassedToService" = "ec2.amazonaws.com" } }
      },
      {
        Sid      = "ReadPublicImageParameters"
        Action   = ["ssm:GetParameter"]
        Resource = ["arn:${data.aws_partition.current.partition}:ssm:*::parameter/aws/service/*"]
      },
      {
        Sid    = "WriteLogs"
        Action = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
        Resource = [
          "arn:${data.aws_partition.current.partition}:logs:*:${data.aws_caller_identity.current.account_id}:log-group:/nstance/${var.cluster_id}/*"
        ]
      },
    ],
    local.encryption_key.kms_key_arn == null ? [] : [
      {
        Sid       = "DecryptEncryptionKey"
        Action    = ["kms:Decrypt"]
        Resource  = [local.encryption_key.kms_key_arn]
        Condition = { StringLike = { "kms:ViaService" = "secretsmanager.*" } }
      },
    ],
    length(var.target_group_arns) == 0 ? [] : [
      {
        Sid      = "RegisterTargets"
        Action   = ["elasticloadbalancing:RegisterTargets", "elasticloadbalancing:DeregisterTargets"]
        Resource = var.target_group_arns
      },
      {
        Sid      = "ReadTargetHealth"
        Action   = ["elasticloadbalancing:DescribeTargetHealth"]
        Resource = ["*"]
      },
    ],
  )
}

resource "aws_iam_role" "server" {
  name                 = "nstance-${var.cluster_id}-server"
  assume_role_policy   = local.assume_from_ec2
  permissions_boundary = var.permissions_boundary_arn
  tags                 = local.tags
}

resource "aws_iam_role_policy" "server" {
  name = "nstance-server"
  role = aws_iam_role.server.id

  policy = jsonencode({
    Version = "2012-10-17"
    # A condition that is empty is left out: IAM does not take it.
    Statement = [
      for statement in local.server_statements : merge(
        { Effect = "Allow" },
        { for key, value in statement : key => value if key != "Condition" },
        length(lookup(statement, "Condition", {})) == 0 ? {} : { Condition = statement.Condition },
      )
    ]
  })
}

resource "aws_iam_instance_profile" "server" {
  name = "nstance-${var.cluster_id}-server"
  role = aws_iam_role.server.name
  tags = local.tags
}

# The agent needs no permission at all. The role is there so that instances have an identity to which you can attach yours.
resource "aws_iam_role" "agent" {
  name                 = "nstance-${var.cluster_id}-agent"
  assume_role_policy   = local.assume_from_ec2
  permissions_boundary = var.permissions_boundary_arn
  tags                 = local.tags
}

resource "aws_iam_instance_profile" "agent" {
  name = "nstance-${var.cluster_id}-agent"
  role = aws_iam_role.agent.name
  tags = local.tags
}
