"""The errors that Lakefork raises on purpose: one class per meaning, one sentence for the reader."""

from typing import Any

MOST_SHOWN, END_SHOWN = 2_000, 400  # characters of a message, and of its end, which has the remedy


def one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def printable(text: str) -> str:
    """Escapes control characters such as \\x1b, which a terminal would obey."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def os_reason(error: OSError) -> str:
    """Returns the file and the operating system's message."""
    name = f"{error.filename}: " if error.filename else ""
    return one_line(f"{name}{error.strerror or str(error).partition(chr(10))[0]}")


class LakeforkError(Exception):
    """Something the reader can act on; the message names the thing and the way out."""

    code = "error"
    retryable = False

    def __str__(self) -> str:
        """One printable line that can be read, whatever names and values are in it."""
        text = super().__str__()
        if len(text) > MOST_SHOWN:
            text = f"{text[: MOST_SHOWN - END_SHOWN]} … {text[-END_SHOWN:]}"
        return one_line(text)


class InvalidInputError(LakeforkError):
    """The request makes no sense as it stands."""

    code = "invalid_input"


class NotFoundError(LakeforkError):
    """The named object does not exist."""

    code = "not_found"


class ConflictError(LakeforkError):
    """Changed concurrently; reading again and retrying can succeed."""

    code = "conflict"
    retryable = True


class DefinitionChangedError(ConflictError):
    """The table was altered or dropped after the write was planned; planning again shows which."""


class PermissionDeniedError(LakeforkError):
    """The session may not do this."""

    code = "permission_denied"


class LimitError(LakeforkError):
    """The request needs more time, rows or memory than it may have."""

    code = "limit_exceeded"


class TooLongError(LimitError):
    """The time of the statement is over."""

    code = "statement_timeout"


class CancelledError(LakeforkError):
    """The caller cancelled the statement."""

    code = "cancelled"


class DatabaseError(LakeforkError):
    """Postgres could not do it, for reasons of its own; a retry can succeed."""

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


class CopyRequiredError(LakeforkError):
    """Changes of a source are lost: only a new copy makes the target equal to it."""

    code = "copy_required"


class TargetDiffersError(LakeforkError):
    """The target of followed changes is not what the source was: somebody has to look."""

    code = "target_differs"


class SetupError(LakeforkError):
    """The machine or the configuration lacks something."""

    code = "setup"


class CatalogVersionError(SetupError):
    """The database holds no Lakefork catalog, or one of another version."""

    code = "catalog_version"


class LeaseHeldError(LakeforkError):
    """Another run works on the same thing."""

    code = "lease_held"
    retryable = True


class LeaseLostError(LakeforkError):
    """This run lost its lease and must not change anything more."""

    code = "lease_lost"


class StorageError(LakeforkError):
    """A file could not be written, moved or removed; once the storage works again, a new run continues."""

    code = "storage"
    retryable = True


class ForeignFilesError(StorageError):
    """A directory has files of somebody else; nothing is written or removed there."""

    code = "foreign_files"
    retryable = False


class UnexpectedError(LakeforkError):
    """A bug, or an unexpected fault; a retry may succeed."""

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
