"""Work on executors: tasks in parallel, one line of progress, the first error raised."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from lakefork.errors import LakeforkError
from lakefork.progress import reporting
from lakefork.spark.job import JobContext
from lakefork.spark.tasks import attempt, unwrap

Task = TypeVar("Task")
Result = TypeVar("Result")
PROGRESS_SECONDS = 2.0


def start_spark(context: JobContext) -> Any:
    from pyspark import SparkContext

    started = time.monotonic()
    spark = SparkContext.getOrCreate()
    seconds = time.monotonic() - started
    if seconds > 0.1:
        context.progress(f"Spark {spark.master} is up after {seconds:.1f} s")
    return spark


def run_on_executors(
    context: JobContext,
    tasks: Sequence[Task],
    work: Callable[[Task], Result],
    size_of: Callable[[Task], int],
    words: Callable[[int, int, float], str],
) -> list[Result]:
    """In the order of the tasks. size_of: how much a task is; words: for how much is done, of how much, per second."""
    if not tasks:
        return []
    spark = start_spark(context)
    done = spark.accumulator(0)

    def run(task: Task) -> Result | LakeforkError:
        result = attempt(lambda: work(task))
        done.add(size_of(task))
        return result

    total = sum(map(size_of, tasks))
    with _live_line(context, total, lambda: done.value, words):
        results: list[Result | LakeforkError] = spark.parallelize(tasks, len(tasks)).map(run).collect()
    return [unwrap(result) for result in results]


@contextmanager
def _live_line(
    context: JobContext, total: int, done: Callable[[], int], words: Callable[[int, int, float], str]
) -> Iterator[None]:
    """Every few seconds; Spark's workers tell it when a task ends, and not before."""
    bar = context.bar(total)

    def say() -> None:
        amount = done()
        bar.reach(amount, words(amount, total, bar.per_second(amount)))

    with reporting(say, PROGRESS_SECONDS):
        yield


def in_megabytes(what: str) -> Callable[[int, int, float], str]:
    """what: is done with so many bytes."""
    return lambda done, total, speed: f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB {what} ({speed / 1e6:,.1f} MB/s)"
