"""Sessions: the user, the role and the catalog."""

from dataclasses import dataclass
from enum import IntEnum

from lakefork.errors import InvalidInputError, PermissionDeniedError
from lakefork.model.predicates import is_storable

LONGEST_USER_ID = 500


class Role(IntEnum):
    """Roles; each includes the permissions of those before it."""

    USER = 1
    SERVICE = 2
    ADMIN = 3
    SYSTEM = 4

    @classmethod
    def named(cls, name: str) -> "Role":
        try:
            return cls[name.upper() if name.isascii() else name]  # upper() maps some other letters to ASCII: ſ to S
        except KeyError:
            raise InvalidInputError(f"role {name!r} does not exist; roles: user, service, admin, system") from None


@dataclass(frozen=True)
class Session:
    """A session. user: required for rows of USER tables; namespace: of tables named without one."""

    catalog: str
    user: str | None = None
    role: Role = Role.USER
    namespace: str | None = None

    def require(self, role: Role, what: str) -> None:
        if self.role < role:
            raise PermissionDeniedError(
                f"permission denied: {what} needs role {role.name.lower()}, this session has {self.role.name.lower()}"
            )

    @property
    def actor(self) -> str:
        return self.user or f"({self.role.name.lower()})"

    def own_user(self) -> str:
        if not self.user:
            raise InvalidInputError("this needs a user: open the session with one (--user ID), or add AS USER 'id'")
        return check_user_id(self.user)


def check_user_id(user_id: str) -> str:
    if not user_id or len(user_id) > LONGEST_USER_ID or not is_storable(user_id):
        raise InvalidInputError(
            f"a user id must have 1 to {LONGEST_USER_ID} characters, without NUL or halves of surrogate pairs"
        )
    return user_id
