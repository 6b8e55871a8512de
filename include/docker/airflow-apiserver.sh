# The API server with the login that the environment gives; SimpleAuthManager reads it from a file only.
set -eu

umask 077
python -c 'import json, os; print(json.dumps({"admin": os.environ["ADMIN_PASSWORD"]}))' \
    > "$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"
unset ADMIN_PASSWORD
umask 022
exec airflow api-server
