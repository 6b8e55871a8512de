-- Runs once, in a new database: who owns the catalog, and who owns Airflow's tables beside it.
\getenv catalog_password CATALOG_DB_PASSWORD
\getenv airflow_password AIRFLOW_DB_PASSWORD

SET log_min_error_statement = panic;  -- a failing statement would be logged with its password

CREATE ROLE airflow LOGIN PASSWORD :'airflow_password';
CREATE ROLE lakefork LOGIN PASSWORD :'catalog_password';
GRANT airflow TO lakefork;  -- system.jobs reads Airflow's tables

ALTER DATABASE :"DBNAME" OWNER TO lakefork;
CREATE SCHEMA airflow AUTHORIZATION airflow;
ALTER ROLE airflow IN DATABASE :"DBNAME" SET search_path = airflow;

-- The lakefork role is no superuser: what only one can do is done here.
REVOKE CONNECT ON DATABASE postgres, template1 FROM PUBLIC;
\i /lakefork/public_rights.sql
