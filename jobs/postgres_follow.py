"""Applies the changes of a Postgres to its copy, each transaction once."""

if __name__ == "__main__":
    from lakefork.model.params import PostgresFollowParams
    from lakefork.spark.job import JobContext, run_job
    from lakefork.transfer.follow.run import run_postgres_follow
    from lakefork.transfer.follow.targets import open_target

    def action(context: JobContext, params: PostgresFollowParams) -> dict[str, object]:
        return run_postgres_follow(context, params, open_target)

    run_job(PostgresFollowParams, action)
