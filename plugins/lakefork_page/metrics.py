"""/metrics for Prometheus, open to users of Airflow and to a scraper with the token of the setting metrics.token."""

import hmac
from typing import Annotated

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import bearer_scheme, get_user, requires_access_view
from fastapi import APIRouter, Depends, Request
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials

from lakefork.overview.metrics import read_metrics
from lakefork.settings import load_settings
from lakefork_page.database import ReadOnlyConnection

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
router = APIRouter()


async def require_scraper(
    request: Request, bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer_scheme)]
) -> None:
    token = load_settings().metrics.token
    if token and bearer and hmac.compare_digest(bearer.credentials.encode(), token.encode()):
        return
    requires_access_view(AccessView.WEBSITE)(request, await get_user(request, None, bearer))


@router.get("/metrics", response_class=PlainTextResponse, dependencies=[Depends(require_scraper)])
def metrics(connection: ReadOnlyConnection) -> PlainTextResponse:
    return PlainTextResponse(read_metrics(connection, load_settings().flush), media_type=CONTENT_TYPE)
