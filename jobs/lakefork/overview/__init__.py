"""What the lake holds and does: the same queries serve `lakefork status`, the page in Airflow and /metrics."""
