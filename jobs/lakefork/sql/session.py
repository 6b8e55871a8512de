"""Who asks, and in which catalog."""

from dataclasses import dataclass
from enum import IntEnum

from lakefork.errors import InvalidInputError, PermissionDeniedError
from lakefork.predicates import is_storable

LONGEST_USER_ID = 500


class Role(IntEnum):
    """Each may what those before it may."""

    USER = 1
    SERVICE = 2
    ADMIN = 3
    SYSTEM = 4

    @classmethod
    def named(cls, name: str) -> "Role":
        try:
            return cls[name.upper() if name.isascii() else name]  # other letters become ASCII ones in capitals: ſ is S
        except KeyError:
            raise InvalidInputError(f"there is no role {name!r}; there are user, service, admin and system") from None


@dataclass(frozen=True)
class Session:
    """user is needed for what belongs to a user; namespace is where names without one are looked up."""

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
            f"a user id has 1 to {LONGEST_USER_ID} characters, without NUL and halves of surrogate pairs"
        )
    return user_id
