"""Makes many forks of one catalog."""

from lakefork.params import ForkProvisionParams
from lakefork.spark.fork_provision import run_fork_provision
from lakefork.spark.job import run_job

if __name__ == "__main__":
    run_job(ForkProvisionParams, run_fork_provision)
