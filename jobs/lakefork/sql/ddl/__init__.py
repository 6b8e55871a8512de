"""Creates, alters and drops namespaces and tables, by commits."""
