"""The errors that Lakefork raises on purpose: one class per meaning, one sentence for the reader."""

from typing import Any


def one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def os_reason(error: OSError) -> str:
    """Which file, and what the operating system says about it."""
    name = f"{error.filename}: " if error.filename else ""
    return one_line(f"{name}{error.strerror or str(error).partition(chr(10))[0]}")


class LakeforkError(Exception):
    """Something the reader can act on; the message names the thing and the way out."""

    code = "error"
    retryable = False

    def __str__(self) -> str:
        """One printable line, whatever names and values are in it."""
        return one_line(super().__str__())


class InvalidInputError(LakeforkError):
    """The request makes no sense as it stands."""

    code = "invalid_input"


class NotFoundError(LakeforkError):
    """What was named does not exist, or no longer."""

    code = "not_found"


class ConflictError(LakeforkError):
    """Somebody else changed it first; reading again and retrying can succeed."""

    code = "conflict"
    retryable = True


class DefinitionChangedError(ConflictError):
    """The table was altered or dropped after the write was planned; planning again tells which."""


class PermissionDeniedError(LakeforkError):
    """Whoever asks may not do it."""

    code = "permission_denied"


class LimitError(LakeforkError):
    """The request needs more time, rows or memory than it may have."""

    code = "limit_exceeded"


class CancelledError(LakeforkError):
    """Whoever asked does not want it any longer."""

    code = "cancelled"


class DatabaseError(LakeforkError):
    """Postgres could not do it, for a reason that lies there; trying again can succeed."""

    code = "database"
    retryable = True


class OutcomeUnknownError(DatabaseError):
    """The connection broke while a change was being saved: it may be there or not, so do not just repeat it."""

    code = "outcome_unknown"
    retryable = False


class AlreadyExistsError(ConflictError):
    """The name is taken."""

    code = "already_exists"
    retryable = False


class SnapshotLostError(LakeforkError):
    """The Postgres snapshot that a run reads under is gone; a new run reads under a new one."""

    code = "snapshot_lost"
    retryable = True


class SetupError(LakeforkError):
    """The machine or the configuration lacks something."""

    code = "setup"


class CatalogVersionError(SetupError):
    """The database holds no Lakefork catalog, or one of another version."""

    code = "catalog_version"


class LeaseHeldError(LakeforkError):
    """Another run is at work on the same thing."""

    code = "lease_held"
    retryable = True


class LeaseLostError(LakeforkError):
    """This run lost its lease and must not change anything more."""

    code = "lease_lost"


class StorageError(LakeforkError):
    """A file could not be written, moved or removed; once the storage is well again, a new run goes on."""

    code = "storage"
    retryable = True


class ForeignFilesError(StorageError):
    """A directory holds what somebody else wrote; nothing is written or removed there."""

    code = "foreign_files"
    retryable = False


class UnforeseenError(LakeforkError):
    """A mistake of ours, or a fault that nobody foresaw; trying again may succeed."""

    code = "internal"
    retryable = True


class JobFailedError(LakeforkError):
    """The job ran to its end and its result is bad news; the result is kept."""

    code = "job_failed"

    def __init__(self, message: str, result: dict[str, Any]) -> None:
        super().__init__(message, result)
        self.result = result

    def __str__(self) -> str:
        return one_line(str(self.args[0]))
