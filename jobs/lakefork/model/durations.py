"""Parses and formats durations."""

from lakefork.errors import InvalidInputError

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("h", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
    **dict.fromkeys(("w", "week", "weeks"), "w"),
}
# The same as a case-sensitive regular expression, for forms.
DURATION = (
    rf"^\s*0*[1-9][0-9]*\s*({'|'.join(''.join(f'[{char}{char.upper()}]' for char in unit) for unit in _UNITS)})\s*$"
)


def seconds_of(text: str, what: str) -> int:
    """Parses '10s', '5 minutes' or '7d'; returns seconds."""
    digits = text.strip()[: len(text.strip()) - len(text.strip().lstrip("0123456789"))]
    unit = _UNITS.get(text.strip()[len(digits) :].strip().lower())
    if not digits or unit is None or int(digits) == 0:
        raise InvalidInputError(
            f"{what} = {text!r} is not a duration; use for example '30s', '5 minutes', '12h' or '7d'"
        )
    return int(digits) * _SECONDS[unit]


def duration_text(seconds: int) -> str:
    """Formats seconds in the largest unit that divides them."""
    unit = next(unit for unit in reversed(_SECONDS) if seconds % _SECONDS[unit] == 0)
    return f"{seconds // _SECONDS[unit]}{unit}"
