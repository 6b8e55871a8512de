"""Commands about the API server and its tokens."""

import argparse
import getpass
import sys
from functools import partial
from typing import Any

from lakefork.cli.answers import database, respond


def add_parsers(commands: Any) -> None:
    for add in (_add_serve, _add_token, _add_subscribe):
        add(commands)


def _add_serve(commands: Any) -> None:
    parser = commands.add_parser("serve", help="the API server: SQL over HTTP, and the console (docs/api.md)")
    parser.add_argument("--host", help="the address to listen on (default: setting server.host, 127.0.0.1)")
    parser.add_argument("--port", type=int, help="0: any free one (default: setting server.port, 8090)")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: setting server.workers, 2)")
    parser.set_defaults(run=serve)


def serve(arguments: argparse.Namespace) -> int:
    from lakefork.server.serve import serve
    from lakefork.settings import load_settings

    settings = load_settings()
    given = settings.server
    host, port = arguments.host or given.host, given.port if arguments.port is None else arguments.port
    say = partial(print, file=sys.stderr, flush=True)
    return serve(settings, database(), host, port, arguments.workers or given.workers, say)


def _add_token(commands: Any) -> None:
    parser = commands.add_parser("token", help="bearer tokens for the API server")
    actions = parser.add_subparsers(required=True, dest="action", metavar="ACTION")
    create = actions.add_parser("create", help="print a token, which is shown only now")
    create.add_argument("--catalog", required=True)
    create.add_argument("--user", required=True, metavar="ID")
    create.add_argument("--role", choices=["user", "service", "admin"], help="the highest (default: the user's)")
    create.add_argument("--expires-in", metavar="T", help="30m, 1h, 7d, … (default: setting server.token_expires_in)")
    actions.add_parser("list", help="tokens that were made, without the tokens themselves")
    revoke = actions.add_parser("revoke", help="end a token, or all of a user, within a second")
    revoke.add_argument("token", nargs="?", metavar="TOKEN", help="its id, or the token itself")
    revoke.add_argument("--catalog")
    revoke.add_argument("--user", metavar="ID")
    for action in actions.choices.values():
        action.add_argument("--json", action="store_true", help="print JSON, also for errors")
    parser.set_defaults(run=token)


def token(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.server.keys import token_key
    from lakefork.server.tokens import create_token, list_tokens, revoke_tokens
    from lakefork.settings import load_settings

    settings = load_settings()
    with connect(database()) as connection:
        if arguments.action == "list":
            found = list_tokens(connection)
            lines = ["  ".join(str(value if value is not None else "-") for value in row.values()) for row in found]
            head = "token  catalog  user  role  created  by  expires  revoked"
            return respond(arguments, "\n".join([head, *lines]) if lines else "there are no tokens", found)
        if arguments.action == "revoke":
            revoked = revoke_tokens(connection, arguments.token, arguments.catalog, arguments.user)
            return respond(arguments, f"{len(revoked)} token(s) revoked", {"revoked": revoked})
        expires_in = arguments.expires_in or settings.server.token_expires_in
        who = arguments.catalog, arguments.user, arguments.role
        made, facts = create_token(connection, token_key(settings), *who, expires_in, getpass.getuser())
    about = "token {token_id} of user {user_id!r} in catalog {catalog}: at most role {role}, until {expires_at}"
    print(about.format(**facts), file=sys.stderr)
    return respond(arguments, made, {"token": made, **facts})


def _add_subscribe(commands: Any) -> None:
    parser = commands.add_parser("subscribe", help="follow a live query of the API server (docs/live.md)")
    parser.add_argument("sql", help='such as "SELECT * FROM app.notes WHERE stars > 3"')
    parser.add_argument("--url", help="of the server (default: settings server.public_url, or server.host and port)")
    parser.add_argument("--catalog", default="main")
    parser.add_argument("--user", metavar="ID", help="for whom a token is made, unless LAKEFORK_API_TOKEN is one")
    parser.add_argument("--role", choices=["user", "service", "admin"])
    parser.add_argument("--last-rows", type=int, metavar="N", help="begin with the newest N rows (default: all)")
    parser.add_argument("--resume", metavar="CURSOR", help="of an earlier message: begin with what has changed since")
    parser.set_defaults(run=subscribe)


def subscribe(arguments: argparse.Namespace) -> int:
    """Prints rows as they come and change, until it is interrupted."""
    import json
    import os

    from lakefork.client import connect
    from lakefork.settings import load_settings

    server = load_settings().server
    url = arguments.url or server.public_url or f"http://{server.host}:{server.port}"
    token = os.environ.get("LAKEFORK_API_TOKEN") or _short_token(arguments)
    with connect(url, token) as client:
        try:
            for message in client.subscribe(arguments.sql, last_rows=arguments.last_rows, resume=arguments.resume):
                lines = [json.dumps(message, ensure_ascii=False)] if arguments.json else message_lines(message)
                for line in lines:
                    print(line, flush=True)
        except KeyboardInterrupt:
            return 0
    return 1  # the server ended it


def message_lines(message: dict[str, Any]) -> list[str]:
    """Returns a message for people: + a row that is there, ~ one that changed, - one that is gone."""
    import json

    from lakefork.errors import printable

    def line(sign: str, row: dict[str, Any]) -> str:
        shown = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in row.items())
        return printable(f"{sign} {' '.join(shown)}")

    if message["type"] == "initial_data":
        return [line("+", row) for row in message["rows"]]
    if message["type"] == "change":
        sign = {"INSERT": "+", "UPDATE": "~", "DELETE": "-"}[message["change_type"]]
        return [line(sign, message.get("new_values") or message["old_values"])]
    return [printable(f"{message['type']}: {message['reason']}")] if "reason" in message else []


def _short_token(arguments: argparse.Namespace) -> str:
    from lakefork.catalog.connection import connect
    from lakefork.errors import InvalidInputError
    from lakefork.server.keys import token_key
    from lakefork.server.tokens import create_token
    from lakefork.settings import load_settings

    if not arguments.user:
        raise InvalidInputError("name a user (--user ID), or set LAKEFORK_API_TOKEN")
    settings = load_settings()
    who = arguments.catalog, arguments.user, arguments.role
    with connect(database()) as connection:
        return create_token(connection, token_key(settings), *who, "24h", getpass.getuser())[0]
