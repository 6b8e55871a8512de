"""system.audit: who changed rows for somebody else."""

from lakefork.hot.connections import ArrowConnection
from lakefork.model.predicates import postgres_text
from lakefork.model.tables import TableDefinition
from lakefork.sql.session import Session


def audit(
    connection: ArrowConnection,
    session: Session,
    definition: TableDefinition,
    action: str,
    as_user: str | None,
    count: int,
) -> None:
    """Records a change by AS USER, in its transaction."""
    if as_user is None:
        return
    texts = [session.actor, session.role.name.lower(), as_user, action, str(definition)]
    values = ", ".join(postgres_text(text) for text in texts)
    connection.execute(
        "INSERT INTO lakefork.audit (catalog_id, actor, role, subject, action, table_name, affected_rows) "
        f"VALUES ({definition.catalog_id}, {values}, {count})"
    )
