"""Which hot rows are in no batch yet: those that no watermark has seen, whatever their _seq."""

from lakefork.hot.tables import HotTable
from lakefork.model.predicates import postgres_text
from lakefork.model.tables import USER_ID


def unpublished(hot: HotTable, owner: str) -> str:
    """Returns a condition on rows of one owner ('': a shared table), whose watermark is looked up once."""
    seen = f"SELECT w.seen FROM {_watermarks(hot)} AND w.user_id = {postgres_text(owner)}"
    return f"pg_visible_in_snapshot(_xid, ({seen})) IS NOT TRUE"


def unpublished_by_owner(hot: HotTable) -> str:
    """Returns the same condition for rows of all owners."""
    owner = USER_ID if hot.definition.per_user else "''"
    return (
        f'NOT EXISTS (SELECT FROM {_watermarks(hot)} AND w.user_id COLLATE "C" = {owner} '
        "AND pg_visible_in_snapshot(_xid, w.seen))"
    )


def _watermarks(hot: HotTable) -> str:
    definition = hot.definition
    return (
        f"lakefork.current_watermark w WHERE w.catalog_id = {definition.catalog_id} "
        f"AND w.table_id = {definition.table_id} AND w.hot_snapshot = {definition.definition_snapshot}"
    )
