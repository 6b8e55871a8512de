"""The page's FastAPI app. Airflow mounts it without any authentication, so every route asks for it here."""

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
from lakefork_page.answers import router as answers
from lakefork_page.metrics import router as metrics

WEB = Path(__file__).parent / "web"
HEADERS = {
    # Nothing comes from elsewhere, and nothing goes elsewhere.
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
async def restrict(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """Every answer has these headers, also a refusal before the login."""
    response = await answer(request)
    response.headers.update(HEADERS)
    return response


@pages.get("/")
def page() -> FileResponse:
    return FileResponse(WEB / "index.html")


@pages.get("/web/{name}")
def asset(name: str) -> FileResponse:
    """Only what is there by that name; a path has more than one part and does not get here."""
    if name not in {path.name for path in WEB.iterdir()}:
        raise HTTPException(404, f"there is no {name}")
    return FileResponse(WEB / name)


@pages.get("/openapi.json")
def description() -> dict[str, Any]:
    """What programs can ask for; its paths are below this app's own address."""
    return app.openapi()


@app.exception_handler(LakeforkError)
def explain(_: Request, error: LakeforkError) -> Response:
    return JSONResponse({"detail": str(error)}, status_code=404 if isinstance(error, NotFoundError) else 503)


@app.exception_handler(psycopg.Error)
def explain_database(_: Request, error: psycopg.Error) -> Response:
    """What Postgres cannot take was asked wrongly; all else is for those who run it, and their log has it."""
    if isinstance(error, psycopg.DataError):
        detail = {"loc": ["query"], "msg": str(database_error(error)), "type": "value_error"}  # as FastAPI refuses
        return JSONResponse({"detail": [detail]}, status_code=422)
    logging.getLogger(__name__).error("the page cannot read the catalog: %s", error)
    return JSONResponse({"detail": "Postgres did not answer this; the API server's log says why"}, status_code=503)


@app.exception_handler(HTTPException)
def refuse(request: Request, error: HTTPException) -> Response:
    """A person gets a way to log in, a program the reason."""
    if error.status_code == 401 and "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(LOGIN.format(next=html.escape(quote(request.url.path))), status_code=401)
    return JSONResponse({"detail": error.detail}, status_code=error.status_code)


app.include_router(pages)
app.include_router(answers)
app.include_router(metrics)
