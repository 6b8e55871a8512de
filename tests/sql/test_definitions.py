"""Values derived from a table's definition are built once per definition."""

import pytest

from lakefork.model.tables import TableDefinition
from support.sql_lake import SqlLake


@pytest.fixture
def table(lake: SqlLake) -> str:
    lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, v STRING)")
    return "app.t"


def test_the_schemas_of_a_definition_are_built_once(lake: SqlLake, table: str) -> None:
    definition = lake.find(table).definition
    arrow, row, key = definition.arrow_schema, definition.row_schema, definition.key_schema
    lake.run(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'); UPDATE {table} SET v = 'c'", user="ada")
    lake.run(f"SELECT * FROM {table}; DELETE FROM {table} WHERE id = 1", user="ada")
    again = lake.find(table).definition
    assert again is definition
    assert again.arrow_schema is arrow
    assert again.row_schema is row
    assert again.key_schema is key
    assert arrow.names == ["id", "v", "_seq", "_deleted", "_user_id"]
    assert row.names == ["id", "v"]
    assert key.names == ["id"]


@pytest.mark.parametrize(
    ("action", "names"),
    [
        ("ADD COLUMN w INT", ["id", "v", "w"]),
        ("DROP COLUMN v", ["id"]),
        ("RENAME COLUMN v TO text", ["id", "text"]),
    ],
)
def test_alter_gives_another_schema_and_leaves_the_old_one(
    lake: SqlLake, table: str, action: str, names: list[str]
) -> None:
    old: TableDefinition = lake.find(table).definition
    schema = old.arrow_schema
    lake.run(f"ALTER TABLE {table} {action}")
    new = lake.find(table).definition
    assert new.arrow_schema is not schema
    assert new.arrow_schema.names == [*names, "_seq", "_deleted", "_user_id"]
    assert old.arrow_schema is schema
    assert schema.names == ["id", "v", "_seq", "_deleted", "_user_id"]
