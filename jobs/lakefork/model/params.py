"""Parameters of the jobs, one class each, for the forms of the DAGs and for the jobs."""

import re
from collections import Counter
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from lakefork.errors import InvalidInputError
from lakefork.model.durations import DURATION, seconds_of

CATALOG_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$"
CONNECTION_NAME = r"^[A-Za-z][A-Za-z0-9_-]{0,99}$"
COPY_ID = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"
# For forms only; the job's own message says more than that a pattern does not match.
NewName = Annotated[str, Field(json_schema_extra={"pattern": CATALOG_NAME})]
AS_DURATION: dict[str, Any] = {"pattern": DURATION, "examples": ["1h", "12h", "1d", "7d", "30d"]}


class JobParams(BaseModel):
    """Base of all parameters. A new field needs a default, so that existing calls keep working."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    job: ClassVar[str]

    def lease_name(self) -> str | None:
        """Returns the lease that allows one run at a time; None: the job takes its own leases."""
        raise NotImplementedError

    @property
    def is_targeted(self) -> bool:
        """Tells whether the caller named what to work on, and so expects it to be done when the job succeeds."""
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
    force: bool = Field(False, description="Flush all waiting rows, whether due or not.")

    def lease_name(self) -> None:
        """Returns None: runs take a lease per table, so that they share the work but never a table."""


class SnapshotDedupParams(JobParams):
    job = "snapshot_dedup"

    catalog: str | None = Field(None, pattern=CATALOG_NAME, description="Merge in this catalog only; empty: in all.")
    namespace: str | None = Field(None, min_length=1, description="Merge batches of tables of this namespace only.")
    table: str | None = Field(None, min_length=1, description="Merge batches of tables of this name only.")
    min_batches: int | None = Field(
        None, ge=2, description="How many batches justify a merge; empty: the setting dedup.min_batches."
    )

    def lease_name(self) -> None:
        """Returns None: runs take a lease per table."""


class ManifestRebuildParams(JobParams):
    job = "manifest_rebuild"

    catalog: str | None = Field(None, pattern=CATALOG_NAME, description="This catalog only; empty: all of them.")
    namespace: str | None = Field(None, min_length=1, description="Tables of this namespace only.")
    table: str | None = Field(None, min_length=1, description="Tables of this name only.")
    user_id: str | None = Field(None, min_length=1, description="The directories of this user only.")
    check_only: bool = Field(False, description="Only report what differs, and fail if anything does.")

    def lease_name(self) -> None:
        """Returns None: runs take a lease per table, as flush does."""


class ManifestEvictionParams(JobParams):
    job = "manifest_eviction"

    def lease_name(self) -> str:
        return f"{self.job}/*"


class ForkProvisionParams(JobParams):
    job = "fork_provision"

    parent: str = Field(pattern=CATALOG_NAME, description="The catalog to fork.")
    names: list[NewName] | None = Field(None, description="Names of the forks; or use name_prefix and count.")
    name_prefix: str | None = Field(
        None, pattern=CATALOG_NAME, description="Names are this prefix followed by 1, 2, … count."
    )
    count: int | None = Field(None, ge=1, le=100_000, description="Number of forks with name_prefix.")
    data_path_template: str | None = Field(
        None,
        pattern=r"\{name\}",
        description="Where each fork's files go; must contain {name}; empty: next to those of the parent.",
    )
    as_of: int | None = Field(
        None, ge=0, description="Fork the parent's files at this snapshot; empty: now, with hot rows."
    )
    expires_after: str | None = Field(
        None,
        json_schema_extra=AS_DURATION,
        description="Lifetime of the forks, such as 2h or 7d; empty: until they are dropped.",
    )
    if_not_exists: bool = Field(False, description="Keep existing forks of this parent.")

    @field_validator("expires_after")
    @classmethod
    def _is_duration(cls, text: str | None) -> str | None:
        return _duration("expires_after", text)

    @model_validator(mode="after")
    def _names_are_given_once(self) -> "ForkProvisionParams":
        if (self.names is None) == (self.name_prefix is None) or (self.name_prefix is None) != (self.count is None):
            raise ValueError("specify names, or name_prefix and count")
        if self.names is not None and not self.names:
            raise ValueError("names is empty: specify at least one")
        if repeated := [name for name, times in Counter(self.names).items() if times > 1]:
            raise ValueError(f"the name {repeated[0]!r} is given twice")
        return self

    @property
    def fork_names(self) -> list[str]:
        return self.names or [f"{self.name_prefix}{number}" for number in range(1, (self.count or 0) + 1)]

    def lease_name(self) -> None:
        """Returns None: names are unique in the catalog, so runs need not wait for each other."""


class RetentionGcParams(JobParams):
    job = "retention_gc"

    catalog: str | None = Field(None, pattern=CATALOG_NAME, description="This catalog only; empty: all of them.")
    retain_snapshots: int | None = Field(
        None, ge=1, description="Keep this many of the last snapshots of each catalog; empty: by the policies."
    )
    retain_for: str | None = Field(
        None,
        json_schema_extra=AS_DURATION,
        description="Keep snapshots younger than this, such as 12h or 7d; empty: by the policies.",
    )
    dry_run: bool = Field(False, description="Only make the plan and print it.")
    require_approval: bool = Field(False, description="Show the plan here in Airflow, and wait for approval.")
    plan_id: str | None = Field(None, description="Carry out exactly this plan; it must still be valid.")

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
        description="Only files that were given up longer ago than this; empty: the setting cleanup.older_than.",
    )
    orphans: bool = Field(False, description="Also search storage for files that no catalog knows.")
    dry_run: bool = Field(False, description="Only make the plan and print it.")
    require_approval: bool = Field(False, description="Show the plan here in Airflow, and wait for approval.")
    plan_id: str | None = Field(None, description="Carry out exactly this plan; it must still be valid.")

    @field_validator("older_than")
    @classmethod
    def _is_duration(cls, text: str | None) -> str | None:
        return _duration("older_than", text)

    def lease_name(self) -> str:
        return self.job


class PostgresCopyParams(JobParams):
    job = "postgres_copy"

    source: str = Field(pattern=CONNECTION_NAME, description="The connection of the database that is copied.")
    target: str | None = Field(
        None, pattern=CONNECTION_NAME, description="The connection of the database that it is copied into; or use into."
    )
    into: str | None = Field(None, pattern=CATALOG_NAME, description="Instead: the catalog whose tables it becomes.")
    include: list[str] | None = Field(
        None, description="Copy only these tables: patterns such as app.* or app.orders; empty: all of them."
    )
    exclude: list[str] | None = Field(None, description="Leave out these tables, and what cannot be without them.")
    exclude_data: list[str] | None = Field(None, description="Copy the definitions of these tables, not their rows.")
    exclude_indexes: list[str] | None = Field(None, description="Do not build these indexes: patterns as for tables.")
    split_larger_than: str | int = Field(
        "250MB", description="Larger tables are copied in parts: 250MB, 1GB or a number of bytes; 0: no table is split."
    )
    table_jobs: int = Field(4, ge=1, le=256, description="How many tables or parts are copied at the same time.")
    index_jobs: int = Field(4, ge=1, le=256, description="How many indexes and constraints are built at the same time.")
    large_object_jobs: int = Field(4, ge=1, le=256, description="How many workers copy large objects.")
    skip: list[Literal["large_objects", "indexes", "constraints", "sequences", "vacuum", "extensions"]] = Field(
        [], description="What is left out altogether."
    )
    roles: bool = Field(False, description="Create the roles that own or may use something, without passwords.")
    drop_if_exists: bool = Field(False, description="Drop what the target has of the same names before it is copied.")
    owner_columns: dict[str, str] | None = Field(
        None, description="Into a catalog: these tables become USER tables, and this column says whose a row is."
    )
    unsupported_types: Literal["refuse", "text"] = Field(
        "refuse", description="Into a catalog: what becomes of columns whose type it does not have."
    )
    compare: bool = Field(True, description="Compare source and target at the end, and fail if they differ.")
    dry_run: bool = Field(False, description="Only print what would be copied, with sizes and parts.")
    follow: bool = Field(False, description="Keep a replication slot that begins where the copy ends.")
    replica_identity_full: bool = Field(
        False, description="With follow: tables without a key get REPLICA IDENTITY FULL on the source."
    )
    copy_id: str | None = Field(None, pattern=COPY_ID, description="The copy's name; with resume: which one goes on.")
    resume: bool = Field(False, description="Go on with a copy that was interrupted, failed or cancelled.")
    not_consistent: bool = Field(
        False, description="With resume, when the snapshot is lost: take a new one, and copy again what has changed."
    )

    @field_validator("split_larger_than")
    @classmethod
    def _is_size(cls, size: str | int) -> str | int:
        bytes_of(size)
        return size

    @field_validator("include", "exclude", "exclude_data", "exclude_indexes")
    @classmethod
    def _are_patterns(cls, patterns: list[str] | None) -> list[str] | None:
        for pattern in patterns or ():
            if "." not in pattern:
                raise ValueError(f"the pattern {pattern!r} names no schema: write schema.table, * stands for anything")
        return patterns

    @model_validator(mode="after")
    def _is_complete(self) -> "PostgresCopyParams":
        if self.resume and self.copy_id is None:
            raise ValueError("resume needs the copy_id of the copy that goes on")
        if (self.target is None) == (self.into is None):
            raise ValueError("give either target or into")
        if self.not_consistent and not self.resume:
            raise ValueError("not_consistent is for resume alone")
        if self.follow and self.owner_columns:
            raise ValueError("USER tables cannot be followed: leave out follow or owner_columns")
        if self.owner_columns and self.target is not None:
            raise ValueError("owner_columns are for a copy into a catalog")
        return self

    @property
    def split_bytes(self) -> int:
        return bytes_of(self.split_larger_than)

    def lease_name(self) -> None:
        """The lease is that of the copy, whose id may be made by the run."""


_UNITS = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?B?)\s*", re.IGNORECASE | re.ASCII)


def bytes_of(size: str | int) -> int:
    """A number of bytes, or one with a unit."""
    if isinstance(size, int):
        if size < 0:
            raise ValueError(f"{size} is no size: write 250MB, 1GB or a number of bytes")
        return size
    found = _SIZE.fullmatch(size)
    unit = found[2].upper() if found else ""
    if found is None or (unit and unit != "B" and not unit.endswith("B")):
        raise ValueError(f"{size!r} is no size: write 250MB, 1GB or a number of bytes")
    return int(float(found[1]) * _UNITS[unit])


class PostgresFollowParams(JobParams):
    job = "postgres_follow"

    copy_id: str | None = Field(None, pattern=COPY_ID, description="Which copy; empty: all that are followed.")
    until: str = Field(
        "current",
        pattern=r"^(current|[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8})$",
        description="How far: current (what the source has committed when the run begins), or an LSN of the source.",
    )
    max_seconds: float | None = Field(
        None, gt=0, description="Stop behind the transaction that is applied then; empty: no limit."
    )

    def lease_name(self) -> None:
        """Each copy has a lease of its own."""


class NamespaceBackupParams(JobParams):
    job = "namespace_backup"

    catalog: str = Field("main", pattern=CATALOG_NAME, description="The catalog to back up, or the one of namespace.")
    namespace: str | None = Field(None, min_length=1, description="Back up this namespace; empty: all of the catalog.")
    to: str = Field(min_length=1, description="Where to: a directory, or s3://bucket/prefix. It can hold many backups.")
    incremental: bool = Field(False, description="Copy only files that no earlier backup at that place has.")
    keep: int | None = Field(
        None, ge=1, description="Afterwards keep so many of the newest backups of it at that place; empty: all."
    )
    verify: bool = Field(False, description="Afterwards read everything back, and check that it is whole.")
    dry_run: bool = Field(False, description="Only say what would be copied and removed.")
    request: str | None = Field(None, description="The id of the statement that asked for it.")

    def lease_name(self) -> None:
        """Each place has a lease of its own, by its normal name."""


class NamespaceRestoreParams(JobParams):
    job = "namespace_restore"

    catalog: str = Field("main", pattern=CATALOG_NAME, description="The catalog to restore into.")
    from_: str = Field(
        alias="from",
        min_length=1,
        description="The place of backups, whose newest one counts, or PLACE/backups/ID for an older one.",
    )
    namespace: str | None = Field(
        None, min_length=1, description="Restore it under this name; empty: the name in the backup, or all names."
    )
    replace: bool = Field(False, description="Replace a namespace of that name, if there is one.")
    by_reference: bool = Field(
        False, description="Share the files of this installation instead of copying them, into another catalog."
    )
    request: str | None = Field(None, description="The id of the statement that asked for it.")

    def lease_name(self) -> None:
        """Each name in a catalog has a lease of its own."""


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
        PostgresCopyParams,
        PostgresFollowParams,
        NamespaceBackupParams,
        NamespaceRestoreParams,
    )
}


def params_class(job: str) -> type[JobParams]:
    if job not in JOBS:
        raise InvalidInputError(f"job {job!r} does not exist; jobs: {', '.join(sorted(JOBS))}")
    return JOBS[job]


def parse_params(job: str, text: str) -> JobParams:
    """Parses the parameters of a job from JSON, or raises one sentence that names the wrong field."""
    params = params_class(job)
    try:
        return params.model_validate_json(text or "{}")
    except ValidationError as error:
        raise InvalidInputError("; ".join(_sentence(params, detail) for detail in error.errors())) from None


def _sentence(params: type[JobParams], detail: Any) -> str:
    field = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        known = ", ".join(field.alias or name for name, field in params.model_fields.items())
        return f"{params.job}: unknown parameter {field!r}; parameters: {known}"
    if detail["type"] == "value_error":
        return f"{params.job}: {str(detail['msg']).removeprefix('Value error, ')}"
    if detail["type"] == "missing":
        return f"{params.job}: parameter {field!r} is missing"
    if not field:
        return f"{params.job}: parameters must be one JSON object: {detail['msg']}"
    return f"{params.job}: parameter {field!r} = {detail['input']!r}: {detail['msg']}"
