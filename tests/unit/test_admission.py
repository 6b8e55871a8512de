"""Whose statement runs next: limits for each user and in all, turns, and nothing lost when somebody gives up."""

import asyncio
import contextlib
import random

import pytest

from lakefork.server.admission import Admission
from lakefork.server.refusals import RefusedError
from lakefork.settings import ServerSettings

LIMITS = ServerSettings(statements=3, statements_per_user=2, waiting=10, waiting_per_user=4, wait_seconds=0.2)


def test_users_take_turns_and_stay_within_their_limits() -> None:
    async def scenario() -> list[str]:
        admission, order = Admission(LIMITS), []
        release = asyncio.Event()

        async def work(user: str) -> None:
            await admission.enter(user)
            order.append(user)
            await release.wait()
            admission.leave(user)

        tasks = [asyncio.create_task(work(user)) for user in ("a", "a", "a", "a", "b", "b", "c")]
        await asyncio.sleep(0)
        assert order == ["a", "a", "b"]
        assert (admission.running, admission.waiting) == (3, 4)
        release.set()
        await asyncio.gather(*tasks)
        assert (admission.running, admission.waiting) == (0, 0)
        return order

    assert asyncio.run(scenario())[3:] == ["b", "c", "a", "a"]


def test_too_many_of_a_user_and_in_all_are_refused() -> None:
    async def scenario() -> None:
        admission = Admission(LIMITS)
        for user in ("a", "a", "b"):
            await admission.enter(user)
        waiting = [asyncio.create_task(admission.enter("a")) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(RefusedError) as refused:
            await admission.enter("a")
        assert refused.value.status == 429
        waiting += [asyncio.create_task(admission.enter(f"u{place}")) for place in range(6)]
        await asyncio.sleep(0)
        with pytest.raises(RefusedError):
            await admission.enter("z")
        done = await asyncio.gather(*waiting, return_exceptions=True)  # nobody leaves: all wait too long
        assert all(isinstance(one, RefusedError) for one in done)
        assert (admission.running, admission.waiting) == (3, 0)
        for user in ("a", "a", "b"):
            admission.leave(user)
        await admission.enter("z")
        assert admission.running == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_no_turn_is_lost(seed: int) -> None:
    """Some give up while they wait, at any moment."""
    pick = random.Random(seed)  # noqa: S311 - a test

    async def scenario() -> None:
        admission = Admission(LIMITS)
        running: dict[str, int] = {}

        async def work(user: str) -> None:
            with contextlib.suppress(RefusedError):
                await admission.enter(user)
                running[user] = running.get(user, 0) + 1
                assert running[user] <= LIMITS.statements_per_user
                assert sum(running.values()) <= LIMITS.statements
                try:
                    await asyncio.sleep(pick.random() / 500)
                finally:
                    running[user] -= 1
                    admission.leave(user)

        tasks = []
        for _ in range(300):
            tasks.append(asyncio.create_task(work(pick.choice("abcd"))))
            if pick.random() < 0.4:
                pick.choice(tasks).cancel()
            if pick.random() < 0.3:
                await asyncio.sleep(pick.random() / 1000)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (admission.running, admission.waiting) == (0, 0)
        for user in ("a", "b", "c"):
            await admission.enter(user)

    asyncio.run(scenario())
