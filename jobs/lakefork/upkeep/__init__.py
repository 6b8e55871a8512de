"""The maintenance jobs. Each has a plan without I/O, a task for executors and a run for the driver."""
