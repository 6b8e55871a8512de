"""Which credentials open which path."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from lakefork.errors import PermissionDeniedError, SetupError
from lakefork.storage import StorageOptions, open_path
from lakefork.storage.credentials import require_allowed


def test_a_path_is_opened_with_the_credentials_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    class Recorder(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            key = self.headers["Authorization"].partition("Credential=")[2].partition("/")[0]
            asked.append((self.path, key))
            self.send_response(200)
            self.send_header("Content-Length", "7")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    for name, value in {
        "AWS_ACCESS_KEY_ID": "everyday", "AWS_SECRET_ACCESS_KEY": "x", "LAKEFORK_S3_VAULT_ACCESS_KEY_ID": "special",
        "LAKEFORK_S3_VAULT_SECRET_ACCESS_KEY": "y",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        options = StorageOptions(f"http://127.0.0.1:{server.server_port}", "us-east-1")
        for path in ("s3://bucket/one", "s3://vault@bucket/two"):
            filesystem, inner = open_path(path, options)
            assert filesystem.get_file_info(inner).size == 7
    finally:
        server.shutdown()
        server.server_close()
    assert asked == [("/bucket/one", "everyday"), ("/bucket/two", "special")]


def test_credentials_that_are_not_there_are_named() -> None:
    with pytest.raises(SetupError, match=r"credentials nowhere are not .* set LAKEFORK_S3_NOWHERE_ACCESS_KEY_ID and "):
        open_path("s3://nowhere@bucket/key", StorageOptions())


@pytest.mark.parametrize(
    ("catalogs", "catalog", "is_allowed"),
    [
        (None, "acme", False),
        ("", "acme", False),
        ("acme", "acme", True),
        ("other, acme", "acme", True),
        ("acme", "acme2", False),
        ("acme", "Acme", False),
        ("acme,agent_*", "agent_7", True),
        ("agent_*", "my_agent_7", False),
        ("a.me", "acme", False),
        ("*", "acme", True),
        (",", "acme", False),
    ],
)
def test_the_operator_names_the_catalogs_that_may_use_credentials(
    monkeypatch: pytest.MonkeyPatch, catalogs: str | None, catalog: str, is_allowed: bool
) -> None:
    monkeypatch.setenv("LAKEFORK_S3_VAULT_ACCESS_KEY_ID", "special")
    monkeypatch.delenv("LAKEFORK_S3_VAULT_CATALOGS", raising=False)
    if catalogs is not None:
        monkeypatch.setenv("LAKEFORK_S3_VAULT_CATALOGS", catalogs)
    if is_allowed:
        require_allowed("vault", catalog)
    else:
        with pytest.raises(PermissionDeniedError) as refused:
            require_allowed("vault", catalog)
        assert str(refused.value) == (
            f"catalog {catalog} may not use the S3 credentials vault: "
            "the operator can allow it in LAKEFORK_S3_VAULT_CATALOGS"
        )
