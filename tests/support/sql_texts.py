"""Helpers for tests of the grammar."""

from hypothesis import strategies as st
from sqlglot import exp

END = "found the end of the statement"

SOUP = (
    "SELECT FROM WHERE INSERT INTO VALUES UPDATE SET DELETE CREATE ALTER DROP TABLE NAMESPACE USER SHARED STREAM AS "
    "AT VERSION TIMESTAMP DEFAULT PRIMARY KEY NOT NULL IN IF EXISTS SHOW TABLES STATS FOR DESCRIBE EXPLAIN FLUSH "
    "POLICY ROWS INTERVAL LOCATION REFERENCE WITH OPTIONS LIMIT OFFSET ORDER BY GROUP HAVING UNION ALL JOIN ON USING "
    "RETURNING CASE WHEN THEN END CAST INT TEXT ARRAY STRUCT MAP DECIMAL JSON BETWEEN LIKE IS AND OR PIVOT LATERAL "
    "UNNEST RECURSIVE ADD COLUMN MODIFY RENAME TO OVER PARTITION FILTER EXTRACT TABLESAMPLE WINDOW QUALIFY XMLELEMENT "
    "a t ns \"q q\" 'x' 'u' 1 2.5 1e9 99999999999999999999 ? $1 $x @ : :: -> ->> => = == <> < > <= + - * / % ^ | || & "
    "( ) [ ] { } , . ; ! ~ # \\ ` -- /* */ {{ }} {% %} E'\\n' x'ff' b'1' 🦆 \n \t \0"
)
soup = st.lists(st.sampled_from(SOUP.split(" ")), max_size=30).map(" ".join)


def sql(expression: exp.Expr | None) -> str | None:
    return expression.sql("duckdb") if expression else None
