"""Checks which functions users' SQL calls, on the tree of DuckDB's own parser, against an allow-list."""

import functools
from collections.abc import Callable, Collection, Iterator
from importlib.resources import files
from typing import Any

from lakefork.errors import InvalidInputError, LakeforkError, LimitError, PermissionDeniedError

Tree = dict[str, Any]
_TABLES = {"BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY", "PIVOT", "CTE"}


@functools.cache
def reviewed_functions() -> dict[str, frozenset[str]]:
    """Returns the lists of functions.txt by name: values, from, off, off in from."""
    found: dict[str, set[str]] = {}
    names: set[str] = set()
    for line in (files(__package__) / "functions.txt").read_text().splitlines():
        if line.startswith("["):
            names = found.setdefault(line.strip("[]"), set())
        elif not line.startswith("# "):
            names.update(line.split())
    return {title: frozenset(listed) for title, listed in found.items()}


def parse_error(said: str) -> LakeforkError:
    """Returns the error of DuckDB's parser, without advice on settings."""
    if "Max expression depth" in said:
        return LimitError("the statement is nested too deeply: use fewer terms, or split it")
    return InvalidInputError(said)


def check_tree(tree: Tree, relations: Collection[str], builtin_views: Callable[[], Collection[str]]) -> None:
    """Raises unless the text is one query over the relations (and its own CTEs) with allowed functions."""
    if tree["error"]:
        raise parse_error(str(tree["error_message"]).split("\n", 1)[0])
    if len(tree["statements"]) != 1:
        raise InvalidInputError("expected one query")
    nodes = list(_nodes(tree["statements"][0]))
    ctes = {entry["key"].lower() for node in nodes if "cte_map" in node for entry in node["cte_map"]["map"]}
    if ctes and (hidden := ctes & set(builtin_views())):
        raise InvalidInputError(f"{min(hidden)} cannot be the name of a subquery in WITH; choose another")
    known = {*relations, *ctes}
    in_from = {id(node["function"]) for node in nodes if node.get("type") == "TABLE_FUNCTION"}
    for node in nodes:
        if "function_name" in node:
            _check_function(node, "from" if id(node) in in_from else "values")
        elif "query_location" in node and "class" not in node:
            _check_table(node, known)


def _check_function(node: Tree, allowed: str) -> None:
    name = node["function_name"].lower()
    if name not in reviewed_functions()[allowed] or node.get("schema") not in (None, "", "main", "pg_catalog"):
        raise PermissionDeniedError(f"permission denied: the function {name} is not available here")


def _check_table(node: Tree, known: Collection[str]) -> None:
    kind = node.get("type")
    if kind not in _TABLES:
        raise PermissionDeniedError(f"permission denied: {kind} is not available in FROM")
    if kind == "BASE_TABLE":
        name = node["table_name"]
        if node["schema_name"] or node["catalog_name"] or name.lower() not in known:
            raise PermissionDeniedError(f"permission denied: table {name} does not exist here")


def _nodes(tree: Any) -> Iterator[Tree]:
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
