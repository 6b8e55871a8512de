"""The page's FastAPI app. Airflow mounts it without authentication, so every route requires it here."""

import html
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response

from lakefork.database_errors import database_error
from lakefork.errors import LakeforkError, NotFoundError
from lakefork_page.endpoints import router as endpoints
from lakefork_page.metrics import router as metrics

WEB = Path(__file__).parent / "web"
HEADERS = {
    # Nothing is loaded from or sent to other hosts.
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
LOGIN = (
    '<!doctype html><title>Lakefork</title><p>Please <a href="../auth/login?next={next}">log in to Airflow</a> first.'
)

app = FastAPI(title="Lakefork", docs_url=None, redoc_url=None, openapi_url=None)
pages = APIRouter(include_in_schema=False, dependencies=[Depends(requires_access_view(AccessView.WEBSITE))])


@app.middleware("http")
async def add_security_headers(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """Adds the headers to every response, also to refusals before the login."""
    response = await answer(request)
    response.headers.update(HEADERS)
    return response


@pages.get("/")
def page() -> FileResponse:
    return FileResponse(WEB / "index.html")


@pages.get("/web/{name}")
def asset(name: str) -> FileResponse:
    """Serves existing files only; a path with several parts does not match this route."""
    if name not in {path.name for path in WEB.iterdir()}:
        raise HTTPException(404, f"{name} does not exist")
    return FileResponse(WEB / name)


@pages.get("/openapi.json")
def description() -> dict[str, Any]:
    """The OpenAPI description; its paths are relative to this app."""
    return app.openapi()


@app.exception_handler(LakeforkError)
def handle_error(_: Request, error: LakeforkError) -> Response:
    return JSONResponse({"detail": str(error)}, status_code=404 if isinstance(error, NotFoundError) else 503)


@app.exception_handler(psycopg.Error)
def handle_database_error(_: Request, error: psycopg.Error) -> Response:
    """A value that Postgres rejects is the caller's error; everything else is logged for the operator."""
    if isinstance(error, psycopg.DataError):
        detail = {"loc": ["query"], "msg": str(database_error(error)), "type": "value_error"}  # as FastAPI refuses
        return JSONResponse({"detail": [detail]}, status_code=422)
    logging.getLogger(__name__).error("the page cannot read the catalog: %s", error)
    return JSONResponse({"detail": "Postgres did not answer; see the API server's log"}, status_code=503)


@app.exception_handler(HTTPException)
def handle_http_error(request: Request, error: HTTPException) -> Response:
    """Shows people a link to log in, and programs the reason."""
    if error.status_code == 401 and "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(LOGIN.format(next=html.escape(quote(request.url.path))), status_code=401)
    return JSONResponse({"detail": error.detail}, status_code=error.status_code)


app.include_router(pages)
app.include_router(endpoints)
app.include_router(metrics)
