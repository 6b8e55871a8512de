"""One Lakefork: its database, its storage and its settings. What works between two of them is given both."""

from dataclasses import dataclass, field

from lakefork.settings import Settings
from lakefork.storage import StorageOptions


@dataclass(frozen=True)
class Installation:
    """Travels to the executors of jobs; the DSN has a password, and is not shown."""

    dsn: str = field(repr=False)
    settings: Settings

    @property
    def storage(self) -> StorageOptions:
        return StorageOptions(self.settings.storage.s3_endpoint, self.settings.storage.s3_region)
