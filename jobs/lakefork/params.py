"""Parameters of the jobs, one class each. The DAG forms and the jobs are both made from these."""

from collections import Counter
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from lakefork.durations import DURATION, seconds_of
from lakefork.errors import InvalidInputError

CATALOG_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$"
# For forms alone; the job itself says more than that a pattern does not match.
NewName = Annotated[str, Field(json_schema_extra={"pattern": CATALOG_NAME})]
AS_DURATION: dict[str, Any] = {"pattern": DURATION, "examples": ["1h", "12h", "1d", "7d", "30d"]}


class JobParams(BaseModel):
    """Base of all parameters. A new field needs a default, so that old calls go on working."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    job: ClassVar[str]

    def lease_name(self) -> str | None:
        """What only one run at a time may work on; None: the job takes its leases itself."""
        raise NotImplementedError

    @property
    def is_targeted(self) -> bool:
        """Whether somebody named what to work on, and so counts on it being done when the job succeeds."""
        return any(getattr(self, name, None) is not None for name in ("catalog", "namespace", "table"))


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


class ForkProvisionParams(JobParams):
    job = "fork_provision"

    parent: str = Field(pattern=CATALOG_NAME, description="The catalog that the forks come from.")
    names: list[NewName] | None = Field(None, description="The forks' names; or use name_prefix and count.")
    name_prefix: str | None = Field(
        None, pattern=CATALOG_NAME, description="Names are this prefix followed by 1, 2, … count."
    )
    count: int | None = Field(None, ge=1, le=100_000, description="How many forks with name_prefix there shall be.")
    data_path_template: str | None = Field(
        None,
        pattern=r"\{name\}",
        description="Where each fork's files go, with {name} in it; empty: beside those of the parent.",
    )
    as_of: int | None = Field(
        None, ge=0, description="Fork what the parent's files held at this snapshot; empty: now, with hot rows."
    )
    expires_after: str | None = Field(
        None,
        json_schema_extra=AS_DURATION,
        description="For how long the forks are wanted, such as 2h or 7d; empty: until they are dropped.",
    )
    if_not_exists: bool = Field(False, description="Forks of this parent that are there already are left as they are.")

    @field_validator("expires_after")
    @classmethod
    def _is_duration(cls, text: str | None) -> str | None:
        return _duration("expires_after", text)

    @model_validator(mode="after")
    def _names_are_given_once(self) -> "ForkProvisionParams":
        if (self.names is None) == (self.name_prefix is None) or (self.name_prefix is None) != (self.count is None):
            raise ValueError("give names, or name_prefix and count")
        if self.names is not None and not self.names:
            raise ValueError("names is empty: give at least one")
        if repeated := [name for name, times in Counter(self.names).items() if times > 1]:
            raise ValueError(f"the name {repeated[0]!r} is given twice")
        return self

    @property
    def fork_names(self) -> list[str]:
        return self.names or [f"{self.name_prefix}{number}" for number in range(1, (self.count or 0) + 1)]

    def lease_name(self) -> None:
        """A name is given out once, whoever asks: runs need not wait for each other."""


class RetentionGcParams(JobParams):
    job = "retention_gc"

    catalog: str | None = Field(None, pattern=CATALOG_NAME, description="This catalog only; empty: all of them.")
    retain_snapshots: int | None = Field(
        None, ge=1, description="Keep so many of the last snapshots of each catalog; empty: as the policies say."
    )
    retain_for: str | None = Field(
        None,
        json_schema_extra=AS_DURATION,
        description="Keep snapshots younger than this, such as 12h or 7d; empty: as the policies say.",
    )
    dry_run: bool = Field(False, description="Only make the plan and print it.")
    require_approval: bool = Field(False, description="Show the plan here in Airflow, and wait for somebody to agree.")
    plan_id: str | None = Field(None, description="Carry out this plan, and no other; it must still be true.")

    @field_validator("retain_for")
    @classmethod
    def _is_duration(cls, text: str | None) -> str | None:
        return _duration("retain_for", text)

    def lease_name(self) -> str:
        return self.job


class FileCleanupParams(JobParams):
    job = "file_cleanup"

    catalog: str | None = Field(None, pattern=CATALOG_NAME, description="Files of this catalog only; empty: of all.")
    older_than: str | None = Field(
        None,
        json_schema_extra=AS_DURATION,
        description="Only what was given up longer ago than this; empty: as the setting cleanup.older_than says.",
    )
    orphans: bool = Field(False, description="Also look through storage for files that no catalog knows.")
    dry_run: bool = Field(False, description="Only make the plan and print it.")
    require_approval: bool = Field(False, description="Show the plan here in Airflow, and wait for somebody to agree.")
    plan_id: str | None = Field(None, description="Carry out this plan, and no other; it must still be true.")

    @field_validator("older_than")
    @classmethod
    def _is_duration(cls, text: str | None) -> str | None:
        return _duration("older_than", text)

    def lease_name(self) -> str:
        return self.job


def _duration(name: str, text: str | None) -> str | None:
    try:
        if text is not None:
            seconds_of(text, name)
    except InvalidInputError as error:
        raise ValueError(str(error)) from None
    return text


JOBS: dict[str, type[JobParams]] = {
    params.job: params
    for params in (
        CatalogFsckParams,
        FlushParams,
        SnapshotDedupParams,
        ManifestRebuildParams,
        ManifestEvictionParams,
        ForkProvisionParams,
        RetentionGcParams,
        FileCleanupParams,
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
    if detail["type"] == "value_error":
        return f"{params.job}: {str(detail['msg']).removeprefix('Value error, ')}"
    if not field:
        return f"{params.job}: parameters must be one JSON object: {detail['msg']}"
    return f"{params.job}: parameter {field!r} = {detail['input']!r}: {detail['msg']}"
