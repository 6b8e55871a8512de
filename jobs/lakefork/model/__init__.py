"""Values without I/O: tables, columns and their types, SeqId, predicates, durations, job parameters."""
