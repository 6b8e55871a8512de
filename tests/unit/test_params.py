"""Job parameters: what is accepted, and the sentence for what is not."""

import contextlib
import json
import re

import pytest

from lakefork.errors import InvalidInputError
from lakefork.model.durations import DURATION, seconds_of
from lakefork.model.params import JOBS, CatalogFsckParams, parse_params


def test_empty_parameters_are_the_defaults() -> None:
    assert parse_params("catalog_fsck", "") == parse_params("catalog_fsck", "{}") == CatalogFsckParams()


def test_parameters_survive_a_round_trip() -> None:
    params = CatalogFsckParams(catalog="main", deep=True)
    assert parse_params("catalog_fsck", params.model_dump_json()) == params
    assert parse_params("catalog_fsck", '{"catalog": null, "deep": false}') == CatalogFsckParams()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"catalgo": "x"}', "catalog_fsck: unknown parameter 'catalgo'; parameters: catalog, deep"),
        ('{"deep": "yes"}', "catalog_fsck: parameter 'deep' = 'yes': Input should be a valid boolean"),
        ('{"deep": 1}', "catalog_fsck: parameter 'deep' = 1: Input should be a valid boolean"),
        ('{"catalog": 7}', "catalog_fsck: parameter 'catalog' = 7: Input should be a valid string"),
        ('{"catalog": "a b"}', "catalog_fsck: parameter 'catalog' = 'a b': String should match pattern"),
        ("[]", "catalog_fsck: parameters must be one JSON object"),
        ("{", "catalog_fsck: parameters must be one JSON object"),
    ],
)
def test_mistakes_name_the_field(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_params("catalog_fsck", text)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"^postgres_copy: parameter 'source' is missing$"):
        parse_params("postgres_copy", '{"into": "main"}')


def test_an_unknown_job_lists_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match="job 'fsck' does not exist; jobs: catalog_fsck"):
        parse_params("fsck", "{}")


@pytest.mark.parametrize("params", JOBS.values(), ids=JOBS)
def test_every_field_has_a_description_and_a_lease_can_be_named(params) -> None:
    for name, field in params.model_fields.items():
        assert field.description and field.description.endswith("."), name
    optional = all(not field.is_required() for field in params.model_fields.values())
    if optional and (lease := params().lease_name()):  # those without take leases of their tables
        assert f"{lease}/".startswith(f"{params.job}/")
    assert json.dumps(params.model_json_schema())


@pytest.mark.parametrize(
    "text",
    ["7d", " 5  minutes ", "12H", "01s", "1Week\n", "soon", "0d", "00", "d", "7", "7 dd", "-1d", "1.5h", "", "٣d"],
)
def test_the_pattern_of_forms_matches_the_parser(text: str) -> None:
    with contextlib.suppress(InvalidInputError):
        assert seconds_of(text, "it") and re.search(DURATION, text)
        return
    assert not re.search(DURATION, text)
