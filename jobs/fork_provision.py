"""Makes many forks of one catalog."""

from lakefork.model.params import ForkProvisionParams
from lakefork.spark.job import run_job
from lakefork.upkeep.forks.run import run_fork_provision

if __name__ == "__main__":
    run_job(ForkProvisionParams, run_fork_provision)
