"""A measured figure with its target."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    area: str
    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool | None:
        if self.at_least is not None:
            return self.value >= self.at_least
        return None if self.at_most is None else self.value <= self.at_most

    def __str__(self) -> str:
        wanted = (
            "" if self.met is None else f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"
        )
        mark = {True: "", False: "  MISSED", None: ""}[self.met]
        return f"{self.area + ': ' + self.name:<72}{self.value:>12.4g} {self.unit:<3}{wanted:>14}{mark}"
