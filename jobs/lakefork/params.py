"""Parameters of the jobs, one class each. The DAG forms and the jobs are both made from these."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lakefork.errors import InvalidInputError

CATALOG_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$"


class JobParams(BaseModel):
    """Base of all parameters. A new field needs a default, so that old calls go on working."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    job: ClassVar[str]

    def lease_name(self) -> str | None:
        """What only one run at a time may work on; None: the job takes its leases itself."""
        raise NotImplementedError


class CatalogFsckParams(JobParams):
    job = "catalog_fsck"

    catalog: str | None = Field(None, pattern=CATALOG_NAME, description="Check this catalog only; empty: all of them.")
    deep: bool = Field(False, description="Also open every file: footer, row count and statistics.")

    def lease_name(self) -> str:
        return f"{self.job}/{self.catalog or '*'}"


class FlushParams(JobParams):
    job = "flush"

    catalog: str | None = Field(None, pattern=CATALOG_NAME, description="Flush this catalog only; empty: all of them.")
    namespace: str | None = Field(None, min_length=1, description="Flush tables of this namespace only.")
    table: str | None = Field(None, min_length=1, description="Flush tables of this name only.")
    user_id: str | None = Field(None, description="Flush rows of this user only.")
    force: bool = Field(False, description="Flush all rows that wait, whether they are due or not.")

    def lease_name(self) -> None:
        """Each table has a lease of its own: runs share the work, and never a table."""


class SnapshotDedupParams(JobParams):
    job = "snapshot_dedup"

    catalog: str | None = Field(None, pattern=CATALOG_NAME, description="Merge in this catalog only; empty: in all.")
    namespace: str | None = Field(None, min_length=1, description="Merge batches of tables of this namespace only.")
    table: str | None = Field(None, min_length=1, description="Merge batches of tables of this name only.")
    min_batches: int | None = Field(
        None, ge=2, description="So many batches are worth a merge; empty: as the setting dedup.min_batches says."
    )

    def lease_name(self) -> None:
        """Each table has a lease of its own."""


class ManifestRebuildParams(JobParams):
    job = "manifest_rebuild"

    catalog: str | None = Field(None, pattern=CATALOG_NAME, description="This catalog only; empty: all of them.")
    namespace: str | None = Field(None, min_length=1, description="Tables of this namespace only.")
    table: str | None = Field(None, min_length=1, description="Tables of this name only.")
    user_id: str | None = Field(None, min_length=1, description="The directories of this user only.")
    check_only: bool = Field(False, description="Only report what differs, and fail if anything does.")

    def lease_name(self) -> None:
        """As flush: each table has a lease of its own."""


class ManifestEvictionParams(JobParams):
    job = "manifest_eviction"

    def lease_name(self) -> str:
        return f"{self.job}/*"


JOBS: dict[str, type[JobParams]] = {
    params.job: params
    for params in (
        CatalogFsckParams,
        FlushParams,
        SnapshotDedupParams,
        ManifestRebuildParams,
        ManifestEvictionParams,
    )
}


def params_class(job: str) -> type[JobParams]:
    if job not in JOBS:
        raise InvalidInputError(f"there is no job {job!r}; jobs: {', '.join(sorted(JOBS))}")
    return JOBS[job]


def parse_params(job: str, text: str) -> JobParams:
    """The parameters of a job from JSON, or one sentence that names the wrong field."""
    params = params_class(job)
    try:
        return params.model_validate_json(text or "{}")
    except ValidationError as error:
        raise InvalidInputError("; ".join(_sentence(params, detail) for detail in error.errors())) from None


def _sentence(params: type[JobParams], detail: Any) -> str:
    field = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        known = ", ".join(params.model_fields)
        return f"{params.job}: there is no parameter {field!r}; parameters: {known}"
    if not field:
        return f"{params.job}: parameters must be one JSON object: {detail['msg']}"
    return f"{params.job}: parameter {field!r} = {detail['input']!r}: {detail['msg']}"
