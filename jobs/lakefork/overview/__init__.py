"""What people see of the lake: the same queries serve `lakefork status`, the page in Airflow and /metrics."""
