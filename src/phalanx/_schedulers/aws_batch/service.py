"""All requests to AWS, and what its complaints mean.

boto3 is imported when the service is used; without it, the extra is named. It finds credentials
by itself, and they stay with it. Requests that are throttled are sent again, later each time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from phalanx._core.sanitize import sanitize_line
from phalanx._schedulers.authoring import need
from phalanx.errors import ConfigError, SchedulerError, SchedulerUnreachable

EXTRA = "phalanx[aws]"
_ATTEMPTS = 8
_CONNECT = 10.0
_READ = 60.0
_LONGEST = 500
_AT_ONCE = 100
"""Jobs, or compute environments, that one request may name."""

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
_UNKNOWN_KEY = {
    "InvalidClientTokenId",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
    "InvalidSignatureException",
}
_LOGIN = "Log in again, such as with: aws sso login"


class Denied(SchedulerError):
    """A right is missing."""


class NotThere(SchedulerError):
    """The service has no such thing."""


class Service:
    """Batch and its logs, in one region. Everything raises `SchedulerError` and `ConfigError`."""

    def __init__(self, region: str | None, profile: str | None, endpoint: str | None) -> None:
        boto3 = need("boto3", EXTRA)
        from botocore.config import Config

        config = Config(
            retries={"mode": "standard", "max_attempts": _ATTEMPTS},
            connect_timeout=_CONNECT,
            read_timeout=_READ,
            user_agent_extra="phalanx",
        )
        with _explained():
            session = boto3.Session(profile_name=profile, region_name=region)
            self._batch = session.client("batch", endpoint_url=endpoint, config=config)
            self._logs = session.client("logs", endpoint_url=endpoint, config=config)

    def close(self) -> None:
        """Let go of connections."""
        self._batch.close()
        self._logs.close()

    def page_of(self, job_id: str) -> str | None:
        """Where a browser shows a job."""
        if "amazonaws.com" not in self._batch.meta.endpoint_url:
            return None
        region = self._batch.meta.region_name
        return f"https://{region}.console.aws.amazon.com/batch/home?region={region}#jobs/detail/{job_id}"

    # ── jobs ──────────────────────────────────────────────────────────────────

    def have_definition(self, definition: Mapping[str, Any]) -> str:
        """The ARN of a definition, which is registered unless it is there."""
        name = definition["jobDefinitionName"]
        with _explained():
            found = self._batch.describe_job_definitions(jobDefinitionName=name, status="ACTIVE")
            if found["jobDefinitions"]:
                return str(found["jobDefinitions"][0]["jobDefinitionArn"])
            return str(self._batch.register_job_definition(**definition)["jobDefinitionArn"])

    def submit(self, job: Mapping[str, Any]) -> str:
        """Submit a job; its id."""
        with _explained():
            return str(self._batch.submit_job(**job)["jobId"])

    def find_jobs(self, queue: str, name: str, value: str) -> list[str]:
        """The ids of a queue's jobs that a filter lets through, in any state; no children."""
        filters = [{"name": name, "values": [value]}]
        with _explained():
            pages = self._batch.get_paginator("list_jobs").paginate(jobQueue=queue, filters=filters)
            found = [str(job["jobId"]) for page in pages for job in page["jobSummaryList"]]
        return [job_id for job_id in found if not {":", "#"} & set(job_id)]

    def jobs(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Jobs by id; those that are not there are left out."""
        found: dict[str, dict[str, Any]] = {}
        for start in range(0, len(ids), _AT_ONCE):
            with _explained():
                answer = self._batch.describe_jobs(jobs=list(ids[start : start + _AT_ONCE]))
            found |= {job["jobId"]: job for job in answer["jobs"]}
        return found

    def terminate(self, job_id: str, reason: str) -> None:
        """End a job, wherever it stands."""
        with _explained():
            self._batch.terminate_job(jobId=job_id, reason=reason)

    def tag(self, arn: str, tags: Mapping[str, str]) -> None:
        """Add tags to a job."""
        with _explained():
            self._batch.tag_resource(resourceArn=arn, tags=dict(tags))

    # ── where they wait ───────────────────────────────────────────────────────

    def queues(self, names: Sequence[str] = ()) -> list[dict[str, Any]]:
        """These queues, or all."""
        given = {"jobQueues": list(names)} if names else {}
        with _explained():
            pages = self._batch.get_paginator("describe_job_queues").paginate(**given)
            return [queue for page in pages for queue in page["jobQueues"]]

    def compute_environments(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Compute environments by name or ARN."""
        if not names:
            return []
        with _explained():
            answer = self._batch.describe_compute_environments(
                computeEnvironments=list(names[:_AT_ONCE])
            )
        found: list[dict[str, Any]] = answer["computeEnvironments"]
        return found

    # ── logs ──────────────────────────────────────────────────────────────────

    def log_events(
        self, group: str, stream: str, token: str | None = None, **more: Any
    ) -> tuple[list[dict[str, Any]], str | None]:
        """A page of a log, and where the next begins; nothing where there is no such log yet."""
        given = {"nextToken": token} if token is not None else {}
        try:
            with _explained():
                page = self._logs.get_log_events(
                    logGroupName=group, logStreamName=stream, **given, **more
                )
        except NotThere:
            return [], token
        return page["events"], page.get("nextForwardToken")


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Ask AWS something: what goes wrong is one sentence."""
    from botocore import exceptions as aws

    try:
        yield
    except aws.ClientError as error:
        raise _refusal(error) from None
    except aws.ProfileNotFound as error:
        raise ConfigError(f"profile: {_said(error)}. See: aws configure list-profiles") from None
    except aws.NoRegionError:
        raise ConfigError(
            "AWS: no region is set. Use -cfg region=…, AWS_REGION, or: aws configure"
        ) from None
    except (aws.NoCredentialsError, aws.PartialCredentialsError):
        raise ConfigError(
            "AWS: no credentials were found. Use -cfg profile=…, or run: aws configure"
        ) from None
    except (aws.TokenRetrievalError, aws.SSOError, aws.CredentialRetrievalError) as error:
        raise SchedulerError(f"AWS: {_said(error)}. {_LOGIN}") from None
    except (aws.HTTPClientError, aws.ConnectionError) as error:
        raise SchedulerUnreachable(f"cannot reach AWS Batch: {_said(error)}.") from None
    except (aws.BotoCoreError, ValueError) as error:  # it was never sent
        raise ConfigError(f"AWS Batch: {_said(error)}.") from None


def _refusal(error: Any) -> SchedulerError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    said = sanitize_line(str(error.response.get("Error", {}).get("Message", "")), _LONGEST)
    what = str(error.operation_name)
    if code in _EXPIRED:
        return SchedulerError(f"AWS: your token has expired. {_LOGIN}")
    if code in _UNKNOWN_KEY:
        return SchedulerError(f"AWS does not know your credentials ({code}). {_LOGIN}")
    if code in _DENIED:
        right = f"{'logs' if what == 'GetLogEvents' else 'batch'}:{what}"
        return Denied(f"AWS denies you {right}: {said} See: phalanx runopts aws_batch --rights")
    if code == "ResourceNotFoundException":
        return NotThere(f"AWS: {said}")
    return SchedulerError(f"AWS Batch refuses {what}: {said or code}")


def _said(error: Exception) -> str:
    return sanitize_line(str(error), _LONGEST).rstrip(".")
