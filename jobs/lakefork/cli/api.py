"""Commands about the API server and its tokens."""

import argparse
import getpass
import sys
from functools import partial
from typing import Any

from lakefork.cli.answers import database, respond


def add_parsers(commands: Any) -> None:
    for add in (_add_serve, _add_token):
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
