"""Plans of statements by key, by shape and session, learnt when a shape is seen again."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

MAX_PLANS = 2_000
REFUSED_SECONDS = 5.0  # for so long a shape that has no plan is not looked at again

P = TypeVar("P")


class Plans(Generic[P]):
    """A cache. Whether a plan still holds is checked by those who use it, and who forget it otherwise."""

    def __init__(self) -> None:
        self._plans: OrderedDict[Hashable, P | None] = OrderedDict()  # None: seen once
        self._refused: dict[Hashable, float] = {}
        self._lock = threading.Lock()

    def find(self, key: Hashable, learn: Callable[[], P | None]) -> P | None:
        """Returns the plan. learn: makes one if the key is seen again."""
        plan = self._plans.get(key)
        if plan is not None:
            return plan
        if not self._is_worth_a_try(key):
            return None
        plan = learn()
        with self._lock:
            if plan is None:
                self._refused[key] = time.monotonic() + REFUSED_SECONDS
            else:
                self._plans[key] = plan
        return plan

    def replace(self, key: Hashable, plan: P) -> None:
        with self._lock:
            self._plans[key] = plan

    def forget(self, key: Hashable) -> None:
        """The next execution learns it again."""
        with self._lock:
            self._plans[key] = None

    def _is_worth_a_try(self, key: Hashable) -> bool:
        with self._lock:
            if self._refused.get(key, 0.0) > time.monotonic():
                return False
            if key in self._plans:
                return True
            self._plans[key] = None
            if len(self._refused) >= MAX_PLANS:
                self._refused.clear()
            while len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
            return False
