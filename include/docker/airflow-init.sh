# What must be there before Airflow starts; may run any number of times.
set -eu

airflow db migrate
airflow pools set lakefork_spark "$SPARK_SLOTS" "Spark jobs at once"

# init refuses a database that is not empty, so a broken catalog stops the start instead of being replaced.
lakefork status || lakefork init --catalog main --data-path "$DATA_PATH"
lakefork airflow link
