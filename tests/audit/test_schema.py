"""The JSON of audits and histories is what its JSON Schema says, and the schema describes every field."""

import json
from importlib.resources import files

import jsonschema
import numpy as np
import pandas as pd
import pytest

from lowchurn.audit import audit, compare, history
from lowchurn.audit._number_inference import FIGURES
from lowchurn.audit._schema import schema, version_of
from tests.audit.conftest import make_tables
from tests.audit.numbers import make_numbers
from tests.audit.test_history import make_releases

KINDS = ["audit", "history", "numbers"]


def closed(part):
    """The schema without fields that it does not name: what is written has to be described."""
    if isinstance(part, list):
        return [closed(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    found = {key: closed(inner) for key, inner in part.items()}
    return found | {"additionalProperties": False} if "properties" in part and "required" in part else found


def validate(text):
    """Check JSON as a reader would, and that nothing in it is unknown to the schema."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    found = json.loads(text, parse_constant=refuse)
    jsonschema.validate(found, schema(found["kind"]), cls=jsonschema.Draft202012Validator)
    jsonschema.validate(found, closed(schema(found["kind"])), cls=jsonschema.Draft202012Validator)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_schemas_are_schemas_and_lie_in_the_package(kind):
    jsonschema.Draft202012Validator.check_schema(schema(kind))
    read = json.loads(files("lowchurn.audit").joinpath("schema", f"{kind}.json").read_text(encoding="utf-8"))
    assert read == schema(kind)
    assert read["$id"] == f"urn:lowchurn:{kind}:{version_of(kind)}"


def test_what_the_schemas_share_and_define_is_the_same():
    first, second, third = (schema(kind)["$defs"] for kind in KINDS)
    for one, other in ((first, second), (first, third), (second, third)):
        for name in one.keys() & other.keys():
            assert one[name] == other[name]
    slices = first["slice"]["properties"]
    assert {name: second["drift"]["properties"][name] for name in slices} == slices


def test_audits_of_every_kind(tmp_path):
    old, new = make_tables(200, labelled=0.5)
    found = audit(old, new, label="y", by=["country", "age"], features="customer", weight="w", bootstrap=100)
    review = found.with_labels(found.disputed(10).assign(label="class 0"))
    limits = {
        "max_churn": 0.1,
        "not_worse_than": 0.01,
        "min_rows": 10,
        "slices": {"*": {"max_broken": 0.2, "min_rows": 50}},
    }
    read = validate(found.to_json(found.gate(limits, review=review), review))
    assert (read["kind"], read["schema_version"]) == ("audit", 1)
    assert read["verdict"]["checks"]
    assert read["review"]["labels"] == 10
    assert read["soft"]
    validate(audit(old, new, label="y", group="customer", bootstrap=100).to_json())
    for name, frame in (("old", old), ("new", new)):
        frame.to_parquet(tmp_path / f"{name}.parquet")
    read = validate(audit(tmp_path / "old.parquet", tmp_path / "new.parquet", prediction="prediction").to_json())
    assert read["provenance"]["old"]["sha256"]
    assert read["estimates"]["broken"]["value"] is None


@pytest.mark.parametrize(
    "answers",
    [
        ["a", "b"], [1, 2], [True, False], [0.5, float("inf")], [2**63 - 1, -(2**63)],
        [pd.Timestamp("2024-01-01"), pd.Timestamp("2024-01-02")],
    ],
    ids=str,
)  # fmt: skip
def test_decisions_of_every_type(answers):
    old = pd.DataFrame({"id": range(10), "prediction": [answers[i % 2] for i in range(10)], "y": [answers[0]] * 10})
    new = old.assign(prediction=[answers[(i // 2) % 2] for i in range(10)])
    validate(audit(old, new, label="y", bootstrap=100).to_json())
    read = validate(history([old, new, old], label="y").to_json())
    assert read["restless"][0]["back"] == 1
    assert None not in read["restless"][0]["decisions"]


def test_comparisons_of_evaluation_runs():
    old = pd.DataFrame({"id": range(40), "correct": [1] * 30 + [0] * 10, "answer": "a", "lang": ["de", "fr"] * 20})
    new = old.assign(correct=[1] * 25 + [0] * 10 + [1] * 5, answer="b").iloc[:-1]
    found = compare(old, new, by="lang")
    limits = {"not_worse_than": 0.05, "never_break": ["lang=de"]}
    read = validate(found.to_json(found.gate(limits)))
    assert (read["coverage"]["only_old"], len(read["changed_items"])) == (1, found.whole.n["changed"])


@pytest.mark.parametrize("how", [{}, {"weight": "w"}, {"group": "customer"}, {"loss": "yhat"}, {"gain": "yhat"}])
def test_audits_of_numbers(how):
    old, new = make_numbers(80, targets=0.7)
    chosen = how if {"loss", "gain"} & {*how} else {"target": "y", **how}
    found = audit(old, new, value="yhat", tolerance=0.1, by=["country", "age"], features="customer", **chosen)
    verdict = found.gate(max_moved=0.5, max_worse=0.3, not_worse_than=0.2, slices={"*": {"max_moved": 0.9}})
    read = validate(found.to_json(verdict))
    assert (read["kind"], read["schema_version"]) == ("numbers", 1)
    assert {*read["estimates"]} == {*FIGURES}


def test_histories_of_every_kind():
    releases = make_releases(4)
    read = validate(history(releases, label="y", by=["country", "age"], weight="w", group="customer").to_json())
    assert (read["kind"], read["schema_version"], len(read["pairs"])) == ("history", 1, 6)
    validate(history(releases[:2]).to_json())
    days = [t.assign(day=np.datetime64("2024-01-01"), prediction=t.prediction) for t in releases]
    validate(history(days, id=["id", "day"], prediction="prediction").to_json())


def test_other_json_is_refused():
    found = history(make_releases(2)).to_dict()
    for change in (
        {"kind": "audit"},
        {"schema_version": 2},
        {"rows": {"judged": -1, "labelled": 0}},
        {"pairs": [{"old": 0}]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(found | change, schema("history"), cls=jsonschema.Draft202012Validator)
