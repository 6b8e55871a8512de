"""The console: one page and its parts, all from here; it knows no more than /api/sql tells whoever signs in."""

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response

WEB = Path(__file__).parent / "web"
HEADERS = {
    # Nothing comes from elsewhere, and nothing goes elsewhere.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def page(_: Request) -> Response:
    return FileResponse(WEB / "index.html", headers=HEADERS)


async def asset(request: Request) -> Response:
    """Only what is there by that name."""
    name = request.path_params["name"]
    if name not in {path.name for path in WEB.iterdir()}:
        raise HTTPException(404)
    return FileResponse(WEB / name, headers=HEADERS)
