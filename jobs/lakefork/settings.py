"""Settings: include/config/lakefork.toml, overridden by LAKEFORK_<SECTION>__<KEY>."""

import functools
import os
import re
import socket
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from lakefork.errors import InvalidInputError, SetupError
from lakefork.model.durations import seconds_of
from lakefork.resources import IS_CHECKOUT, resource

CONFIG_FILE = resource("include/config/lakefork.toml")
PREFIX = "LAKEFORK_"


def _duration(text: str) -> str:
    seconds_of(text, "the setting")
    return text


Duration = Annotated[str, AfterValidator(_duration)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PostgresSettings(Section):
    port: int = Field(0, ge=0, le=65535)
    shared_buffers: str = "256MB"
    max_connections: int = Field(200, ge=20)


class AirflowSettings(Section):
    port: int = Field(0, ge=0, le=65535)
    parallelism: int = Field(4, ge=1)
    spark_slots: int = Field(1, ge=1)
    start_timeout_seconds: int = Field(240, ge=10)


class SparkSettings(Section):
    master: str = "local[*]"
    driver_memory: str = Field("1g", pattern=r"^\d+[kmgKMG]$")
    hot_read_mb: int = Field(256, ge=1)


class JobSettings(Section):
    lease_seconds: int = Field(60, ge=5)
    timeout: Duration = "6h"


class FlushSettings(Section):
    default_rows: int = Field(100_000, ge=1)
    default_interval_seconds: int = Field(3_600, ge=1)
    slice_rows: int = Field(2_000_000, ge=1)
    slice_mb: int = Field(1024, ge=1)
    file_mb: int = Field(256, ge=1)
    bloom_filter_fpp: float = Field(0.01, gt=0, lt=1)
    expectations: str = ""


class DedupSettings(Section):
    min_batches: int = Field(4, ge=2)
    superseded_share: float = Field(0.5, gt=0, le=1)
    file_mb: int = Field(128, ge=1)
    group_mb: int = Field(2_048, ge=1)


class RetentionSettings(Section):
    retain_for: Duration = "7d"
    retain_snapshots: int = Field(0, ge=0)
    jobs_for: Duration = "30d"
    audits_for: Duration = "90d"
    commit_keys_for: Duration = "30d"


class CleanupSettings(Section):
    older_than: Duration = "24h"
    trash: bool = False
    trash_for: Duration = "7d"


class BackupSettings(Section):
    schedule: str = "0 2 * * *"
    to: str = ""
    catalog: str = "main"
    namespaces: str = ""
    incremental: bool = True
    keep: int = Field(7, ge=1)


class ManifestCacheSettings(Section):
    ttl_seconds: int = Field(600, ge=1)
    eviction_interval_seconds: int = Field(300, ge=1)
    max_entries: int = Field(50_000, ge=1)
    last_accessed_memory_window: int = Field(600, ge=1)


class StorageSettings(Section):
    s3_endpoint: str = ""
    s3_region: str = ""
    min_free_mb: int = Field(500, ge=0)


class MetricsSettings(Section):
    token: str = ""


class SqlSettings(Section):
    connections: int = Field(20, ge=1)
    statement_timeout_seconds: float = Field(60, gt=0)
    max_rows: int = Field(1_000_000, ge=1)
    max_changed_rows: int = Field(1_000_000, ge=1)
    memory_mb: int = Field(1024, ge=64)
    hot_cache_mb: int = Field(256, ge=0)
    threads: int = Field(2, ge=1)
    workers: int = Field(8, ge=1)
    shortcuts: bool = True
    batch_cache_mb: int = Field(128, ge=0)


class ServerSettings(Section):
    host: str = "127.0.0.1"
    port: int = Field(8090, ge=0, le=65535)
    workers: int = Field(2, ge=1, le=64)
    statements: int = Field(16, ge=1)
    statements_per_user: int = Field(4, ge=1)
    waiting: int = Field(2_000, ge=0)
    waiting_per_user: int = Field(1_000, ge=0)
    wait_seconds: float = Field(30, gt=0)
    request_seconds: float = Field(300, gt=0)
    max_rows: int = Field(1_000_000, ge=1)
    max_body_kb: int = Field(4_096, ge=1)
    body_seconds: float = Field(30, gt=0)
    send_seconds: float = Field(30, gt=0)
    keep_alive_seconds: int = Field(75, ge=1)
    stop_seconds: int = Field(15, ge=0)
    live_buffer_kb: int = Field(4_096, ge=16)
    live_idle_seconds: float = Field(300, gt=0)
    live_subscriptions_per_socket: int = Field(1_000, ge=1)
    failed_tokens_per_minute: int = Field(60, ge=1)
    idempotency_for: Duration = "24h"
    token_expires_in: Duration = "1h"  # noqa: S105 - a time
    token_key: str = ""
    issuer: str = ""
    issuer_audience: str = ""
    issuer_jwks_file: str = ""
    issuer_secret: str = ""
    issuer_algorithms: list[str] = ["RS256", "ES256"]
    issuer_user_claim: str = "sub"
    issuer_catalog_claim: str = "lakefork_catalog"
    issuer_role_claim: str = "lakefork_role"
    cors_origins: list[str] = []
    tls_certificate: str = ""
    tls_key: str = ""
    trusted_proxies: list[str] = []
    public_url: str = ""


class Settings(BaseSettings):
    """All settings; see the comments in the file for what each does."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, toml_file=CONFIG_FILE
    )

    dsn: str | None = None
    home: Path = resource(".lakefork") if IS_CHECKOUT else Path.home() / ".lakefork"
    node_id: str = Field(default_factory=socket.gethostname, min_length=1)
    postgres: PostgresSettings = PostgresSettings()
    airflow: AirflowSettings = AirflowSettings()
    spark: SparkSettings = SparkSettings()
    jobs: JobSettings = JobSettings()
    flush: FlushSettings = FlushSettings()
    dedup: DedupSettings = DedupSettings()
    retention: RetentionSettings = RetentionSettings()
    cleanup: CleanupSettings = CleanupSettings()
    backup: BackupSettings = BackupSettings()
    manifest_cache: ManifestCacheSettings = ManifestCacheSettings()
    storage: StorageSettings = StorageSettings()
    sql: SqlSettings = SqlSettings()
    metrics: MetricsSettings = MetricsSettings()
    server: ServerSettings = ServerSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


# Set by Airflow's task for its job, and by the API server for its workers; not settings.
OTHER_VARIABLES = {"LAKEFORK_TRACE", "LAKEFORK_SERVER_RUN", "LAKEFORK_API_TOKEN"}
# Connections by name (lakefork.catalog.named_connections); settings never hold them.
_CONNECTION = re.compile(r"LAKEFORK_CONNECTIONS__[A-Za-z0-9_-]+")
# Credentials that storage locations name (lakefork.storage.credentials); settings never hold them.
_CREDENTIALS = re.compile(r"LAKEFORK_S3_[A-Z0-9_]+_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|CATALOGS)")


def _unknown_variables() -> list[str]:
    """Variables with our prefix that mean nothing; pydantic overlooks them at the top level."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    return sorted(
        name
        for name in os.environ
        if name.startswith(PREFIX)
        and name.split("__")[0] not in known
        and name not in OTHER_VARIABLES
        and not _CREDENTIALS.fullmatch(name)
        and not _CONNECTION.fullmatch(name)
    )


@functools.cache
def load_settings() -> Settings:
    if unknown := _unknown_variables():
        raise SetupError(f"{unknown[0]} is set, but Lakefork has no such setting; {CONFIG_FILE} lists them all")
    try:
        return Settings()
    except ValidationError as error:
        raise SetupError("; ".join(_sentence(detail) for detail in error.errors())) from None
    except InvalidInputError as error:
        raise SetupError(str(error)) from None
    except ValueError as error:
        raise SetupError(f"the settings cannot be read ({CONFIG_FILE}): {error}") from error


def _sentence(detail: Any) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return f"setting {key} is not known; {CONFIG_FILE} lists them all"
    return f"setting {key} = {detail['input']!r}: {detail['msg']}"
