"""The key that signs tokens: given by a setting, or generated once below LAKEFORK_HOME, for its owner only."""

import os
import secrets
from pathlib import Path

from lakefork.errors import SetupError
from lakefork.settings import Settings

SHORTEST_KEY = 32  # characters; HS256 is no stronger than its key


def token_key(settings: Settings) -> str:
    """All processes that share LAKEFORK_HOME, or the setting, get the same one."""
    if key := settings.server.token_key:
        if len(key) < SHORTEST_KEY:
            raise SetupError(f"setting server.token_key has fewer than {SHORTEST_KEY} characters")
        return key
    path = settings.home / "secrets" / "token-key"
    try:
        if not path.exists():
            _generate(path)
        if path.stat().st_mode & 0o077:
            raise SetupError(f"others can read {path}, which signs tokens: chmod 600 it, or remove it for a new one")
        key = path.read_text().strip()
    except OSError as error:
        raise SetupError(f"the key that signs tokens, {path}, cannot be read or made ({error.strerror})") from None
    if len(key) < SHORTEST_KEY:
        raise SetupError(f"{path} holds no key: remove it, and a new one is made")
    return key


def _generate(path: Path) -> None:
    """Of several processes that try at once one wins, and all read what it wrote."""
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(48))
    try:
        os.link(scratch, path)
    except FileExistsError:
        pass
    finally:
        scratch.unlink()
