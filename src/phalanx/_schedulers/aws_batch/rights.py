"""The rights that a user needs. Pure."""

from __future__ import annotations

RIGHTS = """\
{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Effect": "Allow",
      "Action": [
        "batch:DescribeJobDefinitions",
        "batch:RegisterJobDefinition",
        "batch:SubmitJob",
        "batch:DescribeJobs",
        "batch:ListJobs",
        "batch:TerminateJob",
        "batch:TagResource",
        "batch:DescribeJobQueues",
        "batch:DescribeComputeEnvironments",
        "logs:GetLogEvents"
      ],
      "Resource": "*"
    }
  ]
}
"""
"""An IAM policy; docs/aws-batch.md has the same. With `job_role_arn` or `execution_role_arn`, users
need iam:PassRole for those roles as well."""
