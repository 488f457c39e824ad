"""The suite of samplers: both sides write as many tokens as they are credited with."""

from __future__ import annotations

import pytest

from jaxrl_agent.benchmark import sampler


def test_replies_have_the_length_that_is_counted_and_change_from_run_to_run():
    contestant = sampler.contestants((3,), new_tokens=5)["sampler/3"]
    first, second = contestant.run(), contestant.run()
    assert contestant.units == sum(len(reply.tokens) for reply in first) == 15
    assert first != second


def test_the_peer_samples_as_many_tokens_from_the_same_weights():
    pytest.importorskip("torch")
    built = sampler.contestants((2,), new_tokens=5, peers=True)
    assert set(built) == {"sampler/2", "transformers/2"}
    assert built["transformers/2"].run().shape == (2, 64 + 5)
    assert built["transformers/2"].units == built["sampler/2"].units
