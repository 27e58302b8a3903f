resource "aws_cloudwatch_log_group" "server" {
  count             = var.log_retention_days > 0 ? 1 : 0
  name              = "/nstance/${var.cluster.id}/${var.shard_id}"
  retention_in_days = var.log_retention_days
  tags              = local.tags
}

resource "aws_cloudwatch_metric_alarm" "no_server" {
  count               = length(var.alarm_topic_arns) > 0 && var.desired_capacity > 0 ? 1 : 0
  alarm_name          = "${local.name}-no-server"
  alarm_description   = "The shard ${var.shard_id} has no server: nothing is replaced or scaled."
  namespace           = "AWS/AutoScaling"
  metric_name         = "GroupInServiceInstances"
  dimensions          = { AutoScalingGroupName = aws_autoscaling_group.server.name }
  statistic           = "Minimum"
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  period              = 60
  evaluation_periods  = 5
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
  tags                = local.tags
}

# The server logs errors when a person has to look.
resource "aws_cloudwatch_log_metric_filter" "errors" {
  count          = length(var.alarm_topic_arns) > 0 && var.log_retention_days > 0 ? 1 : 0
  name           = "${local.name}-errors"
  log_group_name = aws_cloudwatch_log_group.server[0].name
  pattern        = "{ $.level = \"error\" || $.level = \"critical\" }"

  metric_transformation {
    name      = "errors-${var.shard_id}"
    namespace = "Nstance/${var.cluster.id}"
    value     = "1"
  }
}

resource "aws_cloudwatch_metric_alarm" "errors" {
  count               = length(aws_cloudwatch_log_metric_filter.errors)
  alarm_name          = "${local.name}-errors"
  alarm_description   = "A server of the shard ${var.shard_id} logs errors."
  namespace           = "Nstance/${var.cluster.id}"
  metric_name         = "errors-${var.shard_id}"
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 5
  period              = 300
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arns
  tags                = local.tags
}
