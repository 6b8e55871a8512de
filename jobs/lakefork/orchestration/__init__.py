"""Shared code of the DAGs. The only room that imports Airflow."""
