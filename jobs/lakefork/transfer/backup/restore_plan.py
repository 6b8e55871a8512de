"""What a restore adds to a catalog: definitions, history and files, with the numbers of the backup as ranks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakefork.backups.format import HOT_SNAPSHOT
from lakefork.catalog.commits import Changes
from lakefork.cold.layout import owner_part
from lakefork.errors import InvalidInputError, NotFoundError
from lakefork.model.tables import fold
from lakefork.storage.paths import path_part

TASK_BYTES = 64 << 20
TASK_FILES = 500


@dataclass(frozen=True)
class ListedFile:
    """A file of a backup, as the list of its table has it."""

    digest: str
    size: int
    rows: int
    footer_size: int | None
    user_id: str | None
    snapshot: int
    data_file_id: int | None
    statistics: str

    @property
    def is_hot(self) -> bool:
        """Its rows were hot: no catalog ever had the file."""
        return self.snapshot == HOT_SNAPSHOT


@dataclass
class TableToRestore:
    """ref: the placeholder of its id; kept: its definition as the backup has it; digest: what the result must have."""

    ref: int
    namespace: str
    name: str
    kept: Mapping[str, Any]
    digest: str
    files: Sequence[ListedFile]

    @property
    def path(self) -> str:
        """Below the catalog's data path."""
        return f"{path_part(self.namespace)}/{path_part(self.name)}"

    @property
    def owners(self) -> list[str | None]:
        return sorted({file.user_id for file in self.files}, key=lambda one: one or "")

    @property
    def is_clean(self) -> bool:
        """Rows that were hot come as more files, of which that is not known."""
        return bool(self.kept["is_clean"]) and not any(file.is_hot for file in self.files)


@dataclass
class RestorePlan:
    """changes: definitions as they are now; objects: their history; both for lakefork.commit_restore."""

    changes: Changes
    tables: list[TableToRestore]
    objects: list[dict[str, Any]]
    ranks: Mapping[int, int]
    versions: Mapping[int, int]
    users: list[dict[str, Any]] = field(default_factory=list)
    locations: list[dict[str, Any]] = field(default_factory=list)

    @property
    def file_count(self) -> int:
        return sum(len(table.files) for table in self.tables)

    @property
    def history(self) -> dict[str, int]:
        """How many numbers the commit takes."""
        return {"snapshots": max(len(self.ranks), 1), "schema_versions": max(len(self.versions), 1)}


def choose_namespaces(in_backup: Sequence[str], is_whole: bool, wanted: str | None) -> dict[str, str]:
    """Names in the backup and the names that they get; one that a backup of one namespace does not have is new."""
    if wanted is None:
        return {name: name for name in in_backup}
    same = [name for name in in_backup if fold(name) == fold(wanted)]
    if same:
        return {same[0]: same[0] if is_whole else wanted}
    if is_whole and len(in_backup) != 1:
        raise NotFoundError(f"the backup has no namespace {wanted}; it has {', '.join(in_backup) or 'none'}")
    return {in_backup[0]: wanted}


def plan_restore(
    definitions: Mapping[str, Any],
    names: Mapping[str, str],
    files: Mapping[tuple[str, str], Sequence[ListedFile]],
    digests: Mapping[tuple[str, str], str],
) -> RestorePlan:
    """files, digests: by namespace and table as the backup calls them."""
    chosen = [one for one in definitions["namespaces"] if one["name"] in names]
    of_chosen = [file for (namespace, _), listed in files.items() if namespace in names for file in listed]
    ranks = _ranks(_snapshots(chosen, of_chosen))
    versions = _ranks(one["schema_version"] for table in _tables(chosen) for one in table["history"])
    plan = RestorePlan(Changes(), [], [], ranks, versions)
    for namespace in chosen:
        name = names[namespace["name"]]
        schema_id = _add_namespace(plan, namespace, name)
        for kept in namespace["tables"]:
            key = namespace["name"], kept["name"]
            ref = _add_table(plan.changes, schema_id, kept)
            table = TableToRestore(ref, name, kept["name"], kept, digests[key], files.get(key, ()))
            plan.tables.append(table)
            plan.objects.append(_object(plan, ref, kept, name, is_clean=table.is_clean))
    plan.users = [_renamed_rules(user, names) for user in definitions["users"]]
    plan.locations = list(definitions["locations"])
    return plan


def _snapshots(namespaces: Sequence[Mapping[str, Any]], files: Iterable[ListedFile]) -> Iterable[int]:
    for one in (*namespaces, *_tables(namespaces)):
        yield from (date["snapshot"] for date in one["dates"])
    for table in _tables(namespaces):
        yield from (one["snapshot"] for one in table["history"])
    yield from (file.snapshot for file in files)


def _tables(namespaces: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [table for namespace in namespaces for table in namespace["tables"]]


def _ranks(numbers: Iterable[int]) -> dict[int, int]:
    return {number: rank for rank, number in enumerate(sorted(set(numbers)), 1)}


def _add_namespace(plan: RestorePlan, namespace: Mapping[str, Any], name: str) -> int:
    schema_id = plan.changes.new_id()
    plan.changes.add(
        "ducklake_schema", schema_id=schema_id, schema_name=name, path=path_part(name), path_is_relative=True
    )
    for key, value in namespace["tags"].items():
        plan.changes.add("ducklake_tag", object_id=schema_id, key=key, value=value)
    plan.objects.append(_object(plan, schema_id, namespace, name))
    return schema_id


def _add_table(changes: Changes, schema_id: int, kept: Mapping[str, Any]) -> int:
    """Column ids stay: files have them as field ids."""
    table_id = changes.new_id()
    changes.add(
        "ducklake_table", table_id=table_id, schema_id=schema_id, table_name=kept["name"], path=path_part(kept["name"]),
        path_is_relative=True,
    )  # fmt: skip
    for column in kept["columns"]:
        changes.add("ducklake_column", table_id=table_id, **column)
    for tag in kept["column_tags"]:
        changes.add("ducklake_column_tag", table_id=table_id, **tag)
    for key, value in kept["tags"].items():
        changes.add("ducklake_tag", object_id=table_id, key=key, value=value)
    if kept["partitions"]:
        partition_id = changes.new_id()
        changes.add("ducklake_partition_info", partition_id=partition_id, table_id=table_id)
        for partition in kept["partitions"]:
            changes.add("ducklake_partition_column", partition_id=partition_id, table_id=table_id, **partition)
    return table_id


def _object(
    plan: RestorePlan, ref: int, kept: Mapping[str, Any], namespace: str, *, is_clean: bool = False
) -> dict[str, Any]:
    history = [
        {
            "rank": plan.ranks[one["snapshot"]], "version_rank": plan.versions[one["schema_version"]],
            "definition": one["definition"] and {**one["definition"], "namespace": namespace},
        }
        for one in kept.get("history", ())
    ]  # fmt: skip
    dates = [{**date, "rank": plan.ranks[date["snapshot"]]} for date in kept["dates"]]
    return {"ref": ref, "is_table": "history" in kept, "is_clean": is_clean, "history": history, "dates": dates}


def _renamed_rules(user: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Rules begin with the name of a namespace; patterns stay as they are."""
    rules = []
    for rule in user["permissions"]:
        named, dot, rest = rule.partition(".")
        new = next((new for old, new in names.items() if fold(old) == fold(named.strip('"'))), None)
        renamed = new is not None and fold(new) != fold(named.strip('"'))
        quoted = '"' + (new or "").replace('"', '""') + '"'
        rules.append(f"{quoted}{dot}{rest}" if renamed else rule)
    return {**user, "permissions": rules}


@dataclass
class StagedFile:
    """A file of a backup and where it goes: below its table, or nowhere if it is shared."""

    number: int
    table: TableToRestore
    file: ListedFile
    path: str | None
    full_path: str | None


@dataclass
class FetchTask:
    """Digest, size and target of each file."""

    files: list[tuple[str, int, str]] = field(default_factory=list)
    size: int = 0


def place_files(
    plan: RestorePlan, data_path: str, first_numbers: Mapping[str, int], *, by_reference: bool
) -> list[StagedFile]:
    """first_numbers: of the batches of each directory that gets some."""
    numbers = dict(first_numbers)
    staged: list[StagedFile] = []
    for table in plan.tables:
        for file in table.files:
            number = len(staged) + 1
            if by_reference and not file.is_hot:
                staged.append(StagedFile(number, table, file, None, None))
                continue
            directory = f"{data_path}/{table.path}/{owner_part(file.user_id)}"
            name = f"batch-{numbers[directory]}.parquet"
            numbers[directory] += 1
            path = f"{owner_part(file.user_id)}/{name}"
            staged.append(StagedFile(number, table, file, path, f"{directory}/{name}"))
    return staged


def files_per_directory(plan: RestorePlan, data_path: str, *, by_reference: bool) -> dict[str, int]:
    found: dict[str, int] = {}
    for table in plan.tables:
        for file in table.files:
            if file.is_hot or not by_reference:
                directory = f"{data_path}/{table.path}/{owner_part(file.user_id)}"
                found[directory] = found.get(directory, 0) + 1
    return found


def fetch_tasks(staged: Iterable[StagedFile]) -> list[FetchTask]:
    tasks: list[FetchTask] = []
    for one in staged:
        if one.full_path is None:
            continue
        if not tasks or tasks[-1].size >= TASK_BYTES or len(tasks[-1].files) >= TASK_FILES:
            tasks.append(FetchTask())
        tasks[-1].files.append((one.file.digest, one.file.size, one.full_path))
        tasks[-1].size += one.file.size
    return tasks


def require_free_names(names: Iterable[str], existing: Mapping[str, int], *, replace: bool) -> list[int]:
    """The ids of namespaces to replace; raises where one is in the way."""
    taken = [(name, existing[fold(name)]) for name in names if fold(name) in existing]
    if taken and not replace:
        raise InvalidInputError(
            f"namespace {taken[0][0]} already exists: restore under another name, or replace it (REPLACE)"
        )
    return [schema_id for _, schema_id in taken]
