"""What the DAGs share. The only room that imports Airflow."""
