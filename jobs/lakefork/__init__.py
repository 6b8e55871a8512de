"""Lakefork: a lakehouse for very many tenants on one Postgres and one pile of Parquet."""
