"""The laptop stack: Postgres from a wheel and Airflow standalone, started and stopped without a trace."""
