"""Creates files exclusively: if there is no error, this call wrote the file."""

import errno
import os
from contextlib import suppress

import pyarrow as pa

from lakefork.storage import StorageOptions, open_path, put_object, read_file, write_local
from lakefork.storage.s3_requests import NotSupportedError, bucket_and_key, requests_for

_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
LARGEST_PUT = 5 << 30  # S3 accepts larger objects in parts only


def create_file(path: str, content: bytes | pa.Buffer, options: StorageOptions) -> None:
    """Creates a file with all of its content, or not at all. FileExistsError: the name is taken, nothing changed.

    On S3 by a conditional request. Where that is impossible (keys not in the environment, a storage without support),
    the name is checked first, and a concurrent creation is not noticed.
    """
    if path.startswith("s3://"):
        _create_object(path, content, options)
    else:
        write_local(path, content, create_local)


def create_local(temporary: str, path: str) -> None:
    """Gives a local file its name, which must be free."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        os.rename(temporary, path)  # noqa: PTH104
    else:
        os.unlink(temporary)  # noqa: PTH108


def _create_object(path: str, content: bytes | pa.Buffer, options: StorageOptions) -> None:
    requests = requests_for(path, options)
    if requests and len(content) <= LARGEST_PUT:
        with suppress(NotSupportedError):
            try:
                requests.create_object(*bucket_and_key(path, options), content)
            except FileExistsError:
                if not _holds(path, content, options):  # the response to a successful attempt may have been lost
                    raise
            return
    filesystem, inner = open_path(path, options)
    if filesystem.get_file_info(inner).is_file:
        raise FileExistsError(f"{path} already exists")
    put_object(path, content, options)


def _holds(path: str, content: bytes | pa.Buffer, options: StorageOptions) -> bool:
    filesystem, inner = open_path(path, options)
    if filesystem.get_file_info(inner).size != len(content):
        return False
    return read_file(path, options) == (content if isinstance(content, bytes) else content.to_pybytes())
