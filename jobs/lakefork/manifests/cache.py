"""Manifests for readers, from memory, Postgres or storage; only those that agree with the catalog."""

import datetime
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from lakefork.catalog.connection import Connection
from lakefork.catalog.definitions import find_definitions
from lakefork.cold.layout import batch_directory
from lakefork.errors import SetupError
from lakefork.manifests.cache_table import CachedManifest, find_cached, mark_cached, refresh_cached, request_manifests
from lakefork.manifests.format import (
    FILE_NAME,
    BrokenManifest,
    ManifestContent,
    RecordedDirectory,
    check_manifest,
    etag_of,
    read_manifest,
)
from lakefork.model.tables import TableDefinition, TableRef
from lakefork.queries import load
from lakefork.settings import ManifestCacheSettings
from lakefork.storage import StorageOptions, file_version, read_file

RETRY_SECONDS = 10  # pause before an invalid or outdated manifest is read again

Key = tuple[int, int, str]  # catalog, table, user ('' for a shared table)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """A cached manifest; None if it is not valid. version: the file's version in storage."""

    manifest: ManifestContent | None
    checked_at: float
    etag: str | None = None
    version: str | None = None


class ManifestCache:
    """The cache of a process; threads may share it.

    A manifest's entry for a batch stays valid: batches never change, and one that get() returns agreed with the catalog
    when it was checked. It may be older than the caller's snapshot, so look batches up by data_file_id: one that it
    does not list has to be read, one that the snapshot does not have is to be ignored.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[Connection]],
        storage: StorageOptions,
        settings: ManifestCacheSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self._connect = connect
        self._storage = storage
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, Entry] = OrderedDict()  # least recently used first
        self._accessed: dict[Key, float] = {}
        self._waiting: set[Key] = set()
        self._to_check: SimpleQueue[Key | None] = SimpleQueue()
        # A daemon, unlike an executor's threads: a hanging Postgres must not keep the process from exiting.
        self._checker = threading.Thread(target=self._check_all, name="lakefork-manifests", daemon=True)
        self._closed = False
        self._next_eviction = clock() + settings.eviction_interval_seconds

    def get(self, catalog_id: int, table_id: int, user_id: str = "", *, published: int = 0) -> ManifestContent | None:
        """Returns the manifest of a user's directory; None if it is not valid: then ask the catalog.

        published: the last publish there that the caller knows of; an older manifest is looked for again.
        """
        key = catalog_id, table_id, user_id
        now = self._clock()
        with self._lock:
            entry = self._entries.get(key)
        if entry is None or not self._is_fresh(entry, now, published):
            with self._connect() as connection:
                entry = self._load(connection, key, entry)
        self._remember(key, entry, now)
        return entry.manifest

    def touch(self, catalog_id: int, table_id: int, user_id: str = "") -> None:
        """Has a directory's manifest checked in the background, and a new one requested if it is wrong."""
        key, now = (catalog_id, table_id, user_id), self._clock()
        with self._lock:
            self._accessed[key] = now
            entry = self._entries.get(key)
            if key in self._waiting or (entry is not None and self._is_fresh(entry, now, 0)):
                return
            self._waiting.add(key)
            if self._checker.ident is None:
                self._checker.start()
        self._to_check.put(key)

    def _check_all(self) -> None:
        while (key := self._to_check.get()) is not None and not self._closed:
            self._check(key)

    def _check(self, key: Key) -> None:
        try:
            self.get(*key)
        except Exception as error:  # must not fail a read
            logger.warning("manifest_cache_sync_failure: %s", str(error).partition("\n")[0])
        finally:
            with self._lock:
                self._waiting.discard(key)

    def close(self) -> None:
        """Ends the thread after its current check; waiting ones are dropped."""
        self._closed = True
        self._to_check.put(None)
        if self._checker.ident is not None:
            self._checker.join()

    def last_accessed(self) -> dict[Key, datetime.datetime]:
        """Returns when entries were last used in this process; kept in memory only."""
        with self._lock:
            return {key: datetime.datetime.fromtimestamp(at, datetime.UTC) for key, at in self._accessed.items()}

    def __len__(self) -> int:
        return len(self._entries)

    def _is_fresh(self, entry: Entry, now: float, published: int) -> bool:
        age = now - entry.checked_at
        if entry.manifest is None or entry.manifest.snapshot_id < published:
            return age < RETRY_SECONDS
        return age < self.settings.ttl_seconds

    def _remember(self, key: Key, entry: Entry, now: float) -> None:
        with self._lock:
            self._entries[key] = entry
            self._entries.move_to_end(key)
            self._accessed[key] = now
            if now >= self._next_eviction:
                self._next_eviction = now + self.settings.eviction_interval_seconds
                self._evict_unused(now)
            while len(self._entries) > self.settings.max_entries:
                oldest, _ = self._entries.popitem(last=False)
                self._accessed.pop(oldest, None)

    def _evict_unused(self, now: float) -> None:
        oldest = now - self.settings.last_accessed_memory_window
        for key in [key for key, accessed in self._accessed.items() if accessed < oldest]:
            del self._accessed[key]
            self._entries.pop(key, None)

    def _load(self, connection: Connection, key: Key, known: Entry | None) -> Entry:
        """Loads from Postgres if refreshed recently, also before a restart; otherwise compares with storage."""
        catalog_id, table_id, user_id = key
        table = TableRef(catalog_id, table_id)
        defined = find_definitions(connection, [table]).get(table)
        if defined is None:
            return Entry(None, self._clock())
        cached = find_cached(connection, catalog_id, table_id, user_id)
        recorded = _recorded(connection, defined.definition, user_id)
        if cached and cached.sync_state == "in_sync" and cached.age_seconds < self.settings.ttl_seconds:
            found = read_manifest(cached.content)
            if isinstance(found, ManifestContent) and not check_manifest(found, recorded):
                version = known.version if known and known.etag == cached.etag else None
                return Entry(found, self._clock() - cached.age_seconds, cached.etag, version)
        return self._sync(connection, key, recorded, cached, known)

    def _sync(
        self,
        connection: Connection,
        key: Key,
        recorded: RecordedDirectory,
        cached: CachedManifest | None,
        known: Entry | None,
    ) -> Entry:
        """Reads the manifest from storage if it changed, checks it, and saves it in Postgres."""
        path = f"{recorded.path}/{FILE_NAME}"
        try:
            version = file_version(path, self._storage)
            if cached and version is not None and _is_unchanged(cached, version, known):
                content: bytes | None = cached.content.encode()
            else:
                content = read_file(path, self._storage)
        except (OSError, SetupError) as error:
            return self._fail(connection, key, recorded, cached, "error", str(error).splitlines()[0])
        if content is None:
            if not recorded.own and cached is None:  # as in a new fork
                return Entry(None, self._clock())
            return self._fail(connection, key, recorded, cached, "error", "it does not exist")
        found = read_manifest(content)
        differences = check_manifest(found, recorded)
        if differences or isinstance(found, BrokenManifest):
            state = "error" if isinstance(found, BrokenManifest) else "stale"
            return self._fail(connection, key, recorded, cached, state, str(differences[0]))
        etag = etag_of(content)
        refresh_cached(connection, key, recorded.path, content.decode(), etag, seen=cached)
        logger.info("manifest_cache_sync_success: %s", path)
        return Entry(found, self._clock(), etag, version)

    def _fail(
        self,
        connection: Connection,
        key: Key,
        recorded: RecordedDirectory,
        cached: CachedManifest | None,
        state: str,
        problem: str,
    ) -> Entry:
        """Requests a new manifest from the next flush or manifest_rebuild; until then readers do without."""
        if cached:
            mark_cached(connection, key, state, seen=cached)
        request_manifests(connection, TableRef(*key[:2]), {key[2]: recorded.path})
        logger.warning("manifest_cache_sync_failure: %s/%s: %s: %s", recorded.path, FILE_NAME, state, problem)
        return Entry(None, self._clock())


def _recorded(connection: Connection, definition: TableDefinition, user_id: str) -> RecordedDirectory:
    owner = user_id if definition.per_user else None
    row: Mapping[str, Any] = connection.execute(
        load(__package__)["manifest_batches"],
        {
            "catalog_id": definition.catalog_id, "table_id": definition.table_id, "users": [user_id],
            "per_user": definition.per_user,
        },
    ).fetchone() or {"snapshot_id": 0, "batches": []}  # fmt: skip
    directory = batch_directory(definition, owner)
    return RecordedDirectory(directory, definition.table_id, owner, row["snapshot_id"], row["batches"])


def _is_unchanged(cached: CachedManifest, version: str, known: Entry | None) -> bool:
    """Tells whether a file is unchanged: an ETag identifies content; a local version must have been seen before."""
    return version == cached.etag or bool(known and known.version == version and known.etag == cached.etag)
