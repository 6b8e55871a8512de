"""The laptop stack: Postgres from a wheel and Airflow, started and stopped together."""
