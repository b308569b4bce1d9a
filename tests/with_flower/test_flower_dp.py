"""What Flower's own strategy for central differential privacy releases, without noise: why it is not accounted for."""

import numpy as np
import pytest
from flwr.app import Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from flower_runs import SIZE, arrays, grid_of

CLIP = 1.0


def released(updates, weights, sampled):
    """The model after a round from zero, before noise of standard deviation z * CLIP / sampled is added."""
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, CLIP, sampled)
    strategy.current_arrays = arrays()
    grid = grid_of(len(updates), 0)
    replies = []
    for node, (update, weight) in enumerate(zip(updates, weights, strict=True)):
        asked = grid.create_message(RecordDict(), MessageType.TRAIN, node + 2, "")
        content = {"arrays": arrays(update), "metrics": MetricRecord({"num-examples": weight})}
        replies.append(Message(RecordDict(content), reply_to=asked))
    return strategy.aggregate_train(1, replies)[0]["w"].numpy()


def influence(weights, sampled):
    """How far the first client can move the model, from nothing to an update at the clip bound."""
    others = [np.full(SIZE, 1e-9)] * (len(weights) - 1)  # not 0: see below
    there, nothing = np.eye(SIZE)[0] * CLIP, np.full(SIZE, 1e-9)
    return np.linalg.norm(released([there, *others], weights, sampled) - released([nothing, *others], weights, sampled))


def test_noise_is_scaled_for_a_mean_over_equal_clients():
    assert influence([1, 1, 1, 1], sampled=4) == pytest.approx(CLIP / 4, rel=1e-6)


def test_a_client_with_many_examples_moves_the_model_further_than_the_noise_covers():
    assert influence([97, 1, 1, 1], sampled=4) == pytest.approx(0.97 * CLIP, rel=1e-6)


def test_a_client_moves_the_model_further_when_others_drop_out():
    assert influence([1, 1], sampled=4) == pytest.approx(CLIP / 2, rel=1e-6)


def test_a_client_that_changes_nothing_stops_the_server():
    with pytest.raises(ZeroDivisionError):
        released([np.zeros(SIZE), np.ones(SIZE)], [1, 1], sampled=2)
