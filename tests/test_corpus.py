"""Programs that torch.compile was reported to get wrong are right with our operators."""

import json

import corpus
import pytest
import torch
from conftest import needs_compiler

import customops


@pytest.mark.parametrize("case", corpus.CASES, ids=str)
def test_eager_torch_is_the_reference(case):
    """What the comparison rests on: eager torch says what numpy says."""
    assert corpus.same(corpus.run(case, torch), corpus.run(case, corpus.REFERENCE))


# To compile takes long: those with the same options are one graph, if each has one input.
TOGETHER = {}
for case in corpus.CASES:
    alone = str(case) if len(case.inputs()) > 1 else None
    TOGETHER.setdefault((str(case.options), alone), []).append(case)


@needs_compiler
@pytest.mark.parametrize("cases", TOGETHER.values(), ids=lambda cases: f"{cases[0]}, {len(cases)}")
def test_compiled_equals_eager_torch(cases, device):
    actual = corpus.run_together(cases, customops, device, compiled=True)
    expected = [corpus.run(case, torch, device) for case in cases]
    right = map(corpus.same, actual, expected)
    assert not [str(case) for case, is_right in zip(cases, right, strict=True) if not is_right]


def test_a_wrong_index_is_noticed():
    right = [torch.tensor([1, 2]), torch.tensor([0.5])]
    assert corpus.same(right, [x.clone() for x in right])
    assert not corpus.same([torch.tensor([1, 3]), right[1]], right)
    assert not corpus.same([right[0].int(), right[1]], right)
    assert not corpus.same(right[:1], right)


def test_the_file_keeps_other_environments(tmp_path, monkeypatch):
    path = tmp_path / "correctness.json"
    kept = {"torch": "1", "device": "old GPU", "cases": ["kept"]}
    here = {"torch": "2", "device": "here"}
    path.write_text(json.dumps({"environments": [kept, {**here, "cases": ["replaced"]}]}))
    monkeypatch.setattr(corpus, "section", lambda device: {**here, "cases": ["again"]})
    corpus.write(path)
    found = json.loads(path.read_text())["environments"]
    assert found == [kept, {**here, "cases": ["again"]}]


def test_a_section_has_every_case(monkeypatch):
    monkeypatch.setattr(corpus, "CASES", corpus.CASES[:2])
    monkeypatch.setattr(corpus, "verdict", lambda case, op, *_: "wrong" if op is torch else "right")
    section = corpus.section("cpu")
    assert section["torch"] == torch.__version__ and section["device"].startswith("CPU (")
    assert [(case["torch"], case["ours"]) for case in section["cases"]] == [("wrong", "right")] * 2
