"""The audit of a flush: Great Expectations on the metrics of its files, and on rows for users' expectations."""

import contextlib
import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakefork.errors import InvalidInputError
from lakefork.model.tables import DELETED
from lakefork.quality.lean_import import import_lean
from lakefork.quality.suites import MISSING, UNWRITTEN, Rule, built_in_rules, user_expectations
from lakefork.read.slices import HotSource
from lakefork.storage import StorageOptions, open_path
from lakefork.upkeep.flush.publish import Discrepancy, Verdict
from lakefork.upkeep.flush.task import StagedFile

SHOWN_FILES = 20


class FlushAudit:
    def __init__(self, storage: StorageOptions, directory: Path) -> None:
        self._storage = storage
        self._directory = directory

    def judge(
        self, tables: Sequence[HotSource], files: Sequence[Sequence[StagedFile]], lost: Sequence[Discrepancy]
    ) -> list[Verdict]:
        results: list[list[dict[str, Any]]] = [[] for _ in tables]
        by_shape: dict[tuple[str, ...], list[Measurement]] = defaultdict(list)
        for table_index, one in enumerate(lost):
            metrics = {MISSING: one.versions, UNWRITTEN: one.rows}
            by_shape[tuple(metrics)].append(Measurement(table_index, str(tables[table_index].definition), metrics))
        for table_index, of_table in enumerate(files):
            for file in of_table:
                by_shape[tuple(file.metrics)].append(Measurement(table_index, file.path, file.metrics))
        for shape, measured in by_shape.items():
            for table_index, found in _judge_metrics(shape, measured):
                results[table_index].append(found)
        for table_index, table in enumerate(tables):
            results[table_index] += self._judge_rows(table, files[table_index])
        return [_verdict(found) for found in results]

    def _judge_rows(self, table: HotSource, files: Sequence[StagedFile]) -> list[dict[str, Any]]:
        """Checks users' expectations on the live rows."""
        try:
            expectations = user_expectations(table.definition, self._directory)
            return _judge_frame(expectations, _staged_rows(table, files, self._storage)) if expectations else []
        except Exception as error:  # a mistake in users' expectations must not affect other tables
            said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            return [{"about": "the table's own expectations", "success": False, "rows": 0, "error": said}]


@functools.cache
def _context() -> Any:
    import_lean()
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    return context


@dataclass(frozen=True)
class Measurement:
    """Metrics of a file, or of everything that was read of a table."""

    table_index: int
    name: str
    metrics: dict[str, int]


def _judge_metrics(shape: tuple[str, ...], measured: Sequence[Measurement]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Checks each rule for each table, on a frame with one row per file."""
    import great_expectations as gx
    import pandas as pd  # type: ignore[import-untyped]

    rules = built_in_rules(shape)
    frame = pd.DataFrame([one.metrics for one in measured])
    with _scratch(lambda context, name: context.data_sources.add_pandas(name)) as run:
        results = run([_expectation(gx, rule) for rule in rules], frame)
    table_indexes = sorted({one.table_index for one in measured})
    for rule, result in zip(rules, results, strict=True):
        bad: dict[int, list[Measurement]] = defaultdict(list)
        for index in result.result.get("unexpected_index_list") or []:
            bad[measured[index].table_index].append(measured[index])
        for table_index in table_indexes:
            yield table_index, _finding(rule, bad[table_index], failed_altogether=not result.success and not bad)


def _expectation(gx: Any, rule: Rule) -> Any:
    if rule.equals:
        return gx.expectations.ExpectColumnPairValuesToBeEqual(column_A=rule.metric, column_B=rule.equals)
    return gx.expectations.ExpectColumnValuesToBeBetween(column=rule.metric, min_value=0, max_value=0)


def _finding(rule: Rule, bad: Sequence[Measurement], *, failed_altogether: bool) -> dict[str, Any]:
    rows = sum(abs(one.metrics[rule.metric] - (one.metrics[rule.equals] if rule.equals else 0)) for one in bad)
    found: dict[str, Any] = {"about": rule.about, "success": not bad and not failed_altogether, "rows": rows}
    if bad:
        found["files"] = [one.name for one in bad[:SHOWN_FILES]]
    return found


def _judge_frame(expectations: Sequence[dict[str, Any]], frame: Any) -> list[dict[str, Any]]:
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    try:
        suite = [ExpectationConfiguration(**one).to_domain_obj() for one in expectations]
    except Exception as error:  # Great Expectations raises many kinds of errors for users' mistakes
        raise InvalidInputError(f"invalid expectation: {str(error).splitlines()[0]}") from error
    with _scratch(lambda context, name: context.data_sources.add_spark(name, persist=False)) as run:
        results = run(suite, frame)
    return [_user_finding(one, result) for one, result in zip(expectations, results, strict=True)]


def _user_finding(expectation: dict[str, Any], result: Any) -> dict[str, Any]:
    kwargs = ", ".join(f"{name}={value!r}" for name, value in expectation["kwargs"].items())
    found = {
        "about": f"{expectation['type']}({kwargs})",
        "success": bool(result.success),
        "rows": int(result.result.get("unexpected_count") or 0),
    }
    if not result.success and result.result.get("partial_unexpected_list"):
        found["examples"] = [str(value)[:100] for value in result.result["partial_unexpected_list"][:5]]
    if not result.success and "observed_value" in result.result:
        found["observed"] = str(result.result["observed_value"])[:200]
    if error := _exception(result):
        found["error"] = error
    return found


def _exception(result: Any) -> str | None:
    info = result.exception_info or {}
    for one in [info, *(value for value in info.values() if isinstance(value, dict))]:
        if one.get("raised_exception"):
            return str(one.get("exception_message")).splitlines()[0]
    return None


@contextlib.contextmanager
def _scratch(add_source: Any) -> Iterator[Any]:
    """Creates a data source, a suite and a checkpoint for one validation, and removes them afterwards."""
    import great_expectations as gx

    context, name = _context(), "staged"
    batch = add_source(context, name).add_dataframe_asset(name).add_batch_definition_whole_dataframe(name)

    def run(expectations: Sequence[Any], frame: Any) -> list[Any]:
        suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=list(expectations)))
        validation = context.validation_definitions.add(gx.ValidationDefinition(name=name, data=batch, suite=suite))
        checkpoint = context.checkpoints.add(
            gx.Checkpoint(name=name, validation_definitions=[validation], result_format={"result_format": "COMPLETE"})
        )
        (outcome,) = checkpoint.run(batch_parameters={"dataframe": frame}).run_results.values()
        found = {result.expectation_config.id: result for result in outcome.results}
        return [found[one.id] for one in suite.expectations]

    try:
        yield run
    finally:
        for store in (context.checkpoints, context.validation_definitions, context.suites):
            with contextlib.suppress(Exception):
                store.delete(name)
        context.data_sources.delete(name)


def _staged_rows(table: HotSource, files: Sequence[StagedFile], storage: StorageOptions) -> Any:
    """Returns the live rows as a Spark frame, read by our own storage layer, so that Spark needs no connector."""
    from pyspark.sql import SparkSession
    from pyspark.sql.pandas.types import from_arrow_schema

    spark = SparkSession.builder.getOrCreate()
    schema = _plain_schema(table.definition.arrow_schema)
    paths = spark.createDataFrame([(file.path,) for file in files], "path string").repartition(max(1, len(files) // 50))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch.column(0).to_pylist():
                yield from _live_rows(path, storage, schema)

    return paths.mapInArrow(read, from_arrow_schema(schema))


def _live_rows(path: str, storage: StorageOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    filesystem, inner = open_path(path, storage)
    with filesystem.open_input_file(inner) as file:
        for batch in pq.ParquetFile(file).iter_batches():
            live = pa.Table.from_batches([batch]).filter(~pc.field(DELETED)).replace_schema_metadata(None)
            columns = [_plain(live[field.name], field.type) for field in schema]
            yield from pa.table(columns, schema=schema).to_batches()


def _plain(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Converts a column to a type that Spark supports."""
    given = column.type.value_type if pa.types.is_list(column.type) else column.type
    if given == pa.uuid():  # its bytes are not text
        return pa.chunked_array([pa.array([_text(value) for value in column.to_pylist()], kind)])
    return column.cast(kind)


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(one) for one in value]
    return None if value is None else str(value)


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Returns a schema that Spark supports; other types become text."""
    return pa.schema([(field.name, _plain_type(field.type)) for field in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_time(kind):
        return pa.string()
    return kind


def _verdict(results: list[dict[str, Any]]) -> Verdict:
    failed = [one for one in results if not one["success"]]
    said = [f"{one['about']}: {one.get('error') or _rows(one)}" for one in failed]
    return Verdict(not failed, "; ".join(said), results)


def _rows(finding: dict[str, Any]) -> str:
    return f"{finding['rows']} row(s) violate this" if finding["rows"] else "it is violated"
