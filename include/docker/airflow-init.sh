# What must be there before Airflow starts; may run any number of times.
set -eu

airflow db migrate
airflow pools set lakefork_spark "$SPARK_SLOTS" "Spark jobs at once"

# A catalog of an older image is upgraded. init refuses a database that is not empty, so a broken catalog, or one of a newer image, stops the start
# instead of being replaced.
lakefork upgrade || lakefork init --catalog main --data-path "$DATA_PATH"
lakefork airflow link
