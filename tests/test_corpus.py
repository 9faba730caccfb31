"""Programs that torch.compile was reported to get wrong are right with our operators."""

import corpus
import pytest
import torch
from conftest import needs_compiler

import customops

each_case = pytest.mark.parametrize("case", corpus.CASES, ids=str)


@each_case
def test_eager_torch_is_the_reference(case):
    """What the comparison rests on: eager torch says what numpy says."""
    assert corpus.same(corpus.run(case, torch), corpus.run(case, corpus.REFERENCE))


@needs_compiler
@each_case
def test_compiled_equals_eager_torch(case, device):
    actual = corpus.run(case, customops, device, compiled=True)
    assert corpus.same(actual, corpus.run(case, torch, device))


def test_a_wrong_index_is_noticed():
    right = [torch.tensor([1, 2]), torch.tensor([0.5])]
    assert corpus.same(right, [x.clone() for x in right])
    assert not corpus.same([torch.tensor([1, 3]), right[1]], right)
    assert not corpus.same([right[0].int(), right[1]], right)
    assert not corpus.same(right[:1], right)


def test_the_document_keeps_other_environments(tmp_path, monkeypatch):
    document = tmp_path / "correctness.md"
    document.write_text("# Old\n\n## torch 1, old GPU\n\nkept\n\n## torch 2, here\n\nreplaced\n")
    monkeypatch.setattr(corpus, "section", lambda device: f"## torch 2, here\n\n{device} again\n")
    corpus.write(document)
    text = document.read_text()
    assert text.startswith(corpus.INTRODUCTION) and "# Old" not in text
    assert "## torch 1, old GPU\n\nkept\n" in text and "replaced" not in text
    assert text.count("## torch 2, here") == 1 and "again" in text
