"""The page's FastAPI app. Airflow mounts it without any authentication, so every route asks for it here."""

from pathlib import Path

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from jinja2 import Environment, FileSystemLoader

from lakefork.catalog.connection import connect
from lakefork.catalog.status import Status, read_status
from lakefork.errors import LakeforkError
from lakefork.orchestration.database import catalog_dsn

TEMPLATES = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)

app = FastAPI(
    title="Lakefork",
    dependencies=[Depends(requires_access_view(AccessView.WEBSITE))],
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
)


@app.exception_handler(LakeforkError)
def explain(_: Request, error: LakeforkError) -> Response:
    return HTMLResponse(TEMPLATES.get_template("page.html").render(problem=str(error)), status_code=503)


@app.get("/")
def overview() -> HTMLResponse:
    return HTMLResponse(TEMPLATES.get_template("page.html").render(status=_status()))


@app.get("/status.json")
def status() -> JSONResponse:
    return JSONResponse(_status().as_json())


def _status() -> Status:
    with connect(catalog_dsn()) as connection:
        return read_status(connection)
