"""fork_provision: creates many forks of one catalog."""
