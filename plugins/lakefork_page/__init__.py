"""The Lakefork page in the Airflow UI."""
