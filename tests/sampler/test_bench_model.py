"""The model of `scripts.bench.sampler` is one whose replies samplers take."""

from pathlib import Path

from sampler.core.engines.pool.engines import vocabulary_of
from scripts.bench.replies import VOCABULARY, make_tokenizer
from scripts.bench.sampler_under_test import EXAMPLE


def test_the_configuration_has_the_vocabulary_that_replies_are_drawn_from(tmp_path: Path) -> None:
    assert vocabulary_of(make_tokenizer(EXAMPLE, tmp_path / "model")) == VOCABULARY
