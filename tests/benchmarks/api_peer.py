"""The peer: a hand-written FastAPI service over psycopg, with an equally indexed plain table. Needs PEER_DSN."""

import os
from contextlib import asynccontextmanager
from typing import Any

import jwt
from fastapi import FastAPI, Header, HTTPException, Request
from psycopg_pool import AsyncConnectionPool

KEY = "k" * 40
TABLE = """CREATE TABLE IF NOT EXISTS plain_api (catalog_id bigint, _user_id text COLLATE "C", _seq bigint GENERATED ALWAYS AS IDENTITY,
    _deleted boolean NOT NULL DEFAULT false, _xid xid8 NOT NULL DEFAULT pg_current_xact_id(), id bigint NOT NULL, content text,
    PRIMARY KEY (catalog_id, _user_id, _seq));
    CREATE INDEX IF NOT EXISTS plain_api_id ON plain_api (catalog_id, _user_id, id, _seq)"""
pool = AsyncConnectionPool(os.environ.get("PEER_DSN", ""), min_size=16, max_size=16, open=False)


@asynccontextmanager
async def lifespan(_: FastAPI) -> Any:
    await pool.open()
    yield
    await pool.close()


app = FastAPI(lifespan=lifespan)


def user_of(authorization: str) -> str:
    try:
        return str(jwt.decode(authorization.removeprefix("Bearer "), KEY, algorithms=["HS256"])["sub"])
    except jwt.PyJWTError:
        raise HTTPException(401) from None


@app.post("/insert")
async def insert(request: Request, authorization: str = Header()) -> dict[str, Any]:
    user, body = user_of(authorization), await request.json()
    async with pool.connection() as connection:
        await connection.execute(
            "INSERT INTO plain_api (catalog_id, _user_id, id, content) VALUES (1, %s, (random() * 1e15)::bigint, %s)",
            (user, body["content"]),
        )
    return {"affected_rows": 1}


@app.post("/select")
async def select(request: Request, authorization: str = Header()) -> dict[str, Any]:
    user, body = user_of(authorization), await request.json()
    async with pool.connection() as connection:
        found = await connection.execute(
            "SELECT id, content FROM plain_api WHERE catalog_id = 1 AND _user_id = %s AND id = %s ORDER BY _seq DESC LIMIT 1",
            (user, body["id"]),
        )
        rows = await found.fetchall()
    return {"columns": ["id", "content"], "rows": rows}
