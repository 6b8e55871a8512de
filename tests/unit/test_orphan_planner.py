"""Which files are orphans, by facts alone."""

import datetime

import pytest

from lakefork.upkeep.cleanup.orphan_plan import (
    Claims,
    Root,
    directories_to_check,
    find_linked_roots,
    paths_to_check,
    plan_roots,
    spared_by_claim,
    spared_without_claims,
    split_names,
)

NOW = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)
OLD = NOW - datetime.timedelta(days=2)
CUTOFF = NOW - datetime.timedelta(days=1)
TEMPORARY = "0123456789abcdef" * 2


def root(place: str, catalog_id: int = 1, *, location: str | None = None, known: bool = True) -> Root:
    return Root(place, place, (catalog_id,), location, known, ())


MAIN = root("/lake/main")


@pytest.mark.parametrize(
    ("below", "reason"),
    [
        ("app/t/shared/batch-0.parquet", None),
        ("app/t/shared/manifest.json", None),
        ("stray", "does not write such files"),
        (".trash/2026-04-01/app/t/shared/batch-0.parquet", "trash"),
        ("app/t/shared/.trash/2026-04-01/batch-0.parquet", "trash"),
        ("app/.trash/x", "does not write such files"),
        (".trash", "does not write such files"),
        ("app/t/notes.txt", "does not write such files"),
        ("app/t/shared/batch-00.parquet", "does not write such files"),
        ("app/t/shared/batch-0.parquet.bak", "does not write such files"),
        ("app/t/shared/.batch-0.parquet." + TEMPORARY, None),
        ("configs/app/mine.json", "does not write such files"),
        ("configs/app/schemas/t/.current.json." + TEMPORARY, None),
        ("configs/app/manifest.json", "belongs to the catalog"),
        ("configs/app/schemas/t/schema_v12.json", "belongs to the catalog"),
        ("configs/app/schemas/t/current.json", "belongs to the catalog"),
        ("configs/app/schemas/t/batch-0.parquet", None),
        ("configs/manifest.json", None),
        ("app/t/.lakefork-root.json", "marks the directory as ours"),
        ("configs/.lakefork-root.json", "marks the directory as ours"),
        ("x/configs/app/manifest.json", None),
    ],
)
def test_what_is_spared_without_asking(below: str, reason: str | None) -> None:
    found = spared_without_claims(MAIN, f"/lake/main/{below}", OLD, CUTOFF)
    assert (found is None) == (reason is None)
    assert reason is None or reason in (found or "")


def test_schema_files_of_an_expired_catalog_are_orphans() -> None:
    assert (
        spared_without_claims(root("/lake/main", known=False), "/lake/main/configs/app/manifest.json", OLD, CUTOFF)
        is None
    )


def test_young_files_are_spared_and_the_limit_is_young() -> None:
    path = "/lake/main/app/t/shared/batch-0.parquet"
    assert "young" in (spared_without_claims(MAIN, path, NOW, CUTOFF) or "")
    assert "young" in (spared_without_claims(MAIN, path, CUTOFF, CUTOFF) or "")
    assert "young" in (spared_without_claims(MAIN, path, NOW + datetime.timedelta(days=9), CUTOFF) or "")
    assert spared_without_claims(MAIN, path, CUTOFF - datetime.timedelta(microseconds=1), CUTOFF) is None


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("/shared/ada/events/batch-7.parquet", True),
        ("/shared/ada/events/manifest.json", True),
        (f"/shared/ada/events/.batch-7.parquet.{TEMPORARY}", True),
        ("/shared/ada/events/user_ada/batch-7.parquet", True),
        ("/shared/ada/events/report.parquet", False),
        ("/shared/ada/other/batch-7.parquet", False),
        ("/shared/batch-7.parquet", False),
        ("/shared/ada/events/.trash/2026-04-01/batch-7.parquet", False),
        ("/shared/a/b/events/batch-7.parquet", False),
    ],
)
def test_in_a_location_only_what_flush_could_have_written_counts(path: str, ours: bool) -> None:
    location = root("/shared", location="/shared/[^/]*/events/")
    assert (spared_without_claims(location, path, OLD, CUTOFF) is None) == ours


def test_claims_spare_files() -> None:
    path = "/lake/main/app/t/shared/batch-0.parquet"
    assert spared_by_claim(path, Claims({})) is None
    for claim in ("file", "scheduled", "staged", "foreign"):
        assert spared_by_claim(path, Claims({path: {claim}}))
    assert spared_by_claim(path, Claims({f"{path}x": {"file"}})) is None
    assert spared_by_claim(path, Claims({path: {"table"}})) is None


def test_a_temporary_file_is_spared_for_as_long_as_its_target_is_staged() -> None:
    target = "/lake/main/app/t/shared/batch-0.parquet"
    temporary = f"/lake/main/app/t/shared/.batch-0.parquet.{TEMPORARY}"
    assert paths_to_check(temporary) == [temporary, target]
    assert spared_by_claim(temporary, Claims({target: {"staged"}}))
    assert spared_by_claim(temporary, Claims({target: {"file"}})) is None


def test_a_manifest_belongs_to_its_table_and_no_other_file_does() -> None:
    directory = "/lake/main/app/t/shared"
    claims = Claims({directory: {"table"}})
    assert directories_to_check(f"{directory}/manifest.json") == [directory]
    assert spared_by_claim(f"{directory}/manifest.json", claims)
    assert spared_by_claim(f"{directory}/batch-0.parquet", claims) is None
    assert spared_by_claim(f"{directory}/manifest.json", Claims({directory: {"quarantine"}})) is None


def test_what_an_audit_refused_is_spared_as_long_as_the_audit_is_known() -> None:
    quarantine = "/lake/main/app/t/.quarantine/flush%2Frun"
    path = f"{quarantine}/shared/batch-3.parquet"
    assert directories_to_check(path) == [quarantine]
    assert spared_by_claim(path, Claims({quarantine: {"quarantine"}}))
    assert spared_by_claim(path, Claims({})) is None


def test_nested_roots_are_left_to_their_owners_and_prefixes_are_not_nested() -> None:
    found = [root("/a/b", 1), root("/a/bc", 2), root("/a/b/c/d", 3), root("/a/b/e", 4, location="/a/b/e/")]
    planned = {one.place: one for one in plan_roots(found)}
    assert set(planned["/a/b"].inner) == {"/a/b/c/d", "/a/b/e"}
    assert planned["/a/bc"].inner == planned["/a/b/c/d"].inner == ()
    assert [one.place for one in plan_roots(found) if one.is_of({1})] == ["/a/b"]


def test_a_place_that_two_catalogs_had_belongs_to_both() -> None:
    (planned,) = plan_roots([root("/a", 1, known=False), root("/a", 2)])
    assert planned.catalog_ids == (1, 2)
    assert planned.known


def test_locations_that_begin_alike_are_one_root_with_all_their_directories() -> None:
    (planned,) = plan_roots([root("/x", location="/x/[^/]*/a/"), root("/x", location="/x/[^/]*/b/")])
    for name in ("a", "b"):
        assert spared_without_claims(planned, f"/x/ada/{name}/batch-1.parquet", OLD, CUTOFF) is None
    assert spared_without_claims(planned, "/x/ada/c/batch-1.parquet", OLD, CUTOFF)
    (planned,) = plan_roots([root("/x", location="/x/"), root("/x")])
    assert planned.location is None


def test_roots_that_are_one_by_a_link_are_left_alone_and_no_others() -> None:
    assert find_linked_roots({"/a": "/a", "/a/b": "/a/b", "/ab": "/ab", "/c": "/elsewhere/c"}) == {}
    found = find_linked_roots({"/a": "/mnt", "/b": "/mnt", "/c": "/c"})
    assert set(found) == {"/a", "/b"}
    assert "/b and /a are the same directory by a link" in found["/a"]
    found = find_linked_roots({"/a": "/mnt", "/b/x": "/mnt/x", "/mnt": "/other"})
    assert set(found) == {"/a", "/b/x"}
    assert "/b/x lies within /a by a link" in found["/b/x"]


def test_wide_directories_are_split_without_gaps() -> None:
    assert split_names([]) == [("", "")]
    assert split_names(["b", "a"]) == [("", "")]
    parts = split_names([f"user_{number}" for number in range(25)], 10)
    assert parts[0][0] == parts[-1][1] == ""
    assert [one[1] for one in parts[:-1]] == [one[0] for one in parts[1:]]
    assert len(parts) == 3
