"""The demo: a private classifier of handwritten digits, accounted step by step, with a picture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from bayesdp.accountant import BayesianAccountant
from bayesdp.accounting import Track
from bayesdp.validation import FloatArray, InvalidInputError, refuse
from bayesdp.worst_case import epsilon as worst_case_epsilon

STEPS, SAMPLE_RATE, CLIP, NOISE_MULTIPLIER, DELTA = 150, 0.25, 1.0, 6.0, 1e-5
TRAIN, AUDIT = 1000, 500
LEARNING_RATE = 4.0


@dataclass(frozen=True)
class Run:
    """Norms of the audit records at each step [steps, records], and the accuracy on the records left over."""

    audit_norms: FloatArray
    accuracy: float


def run(folder: Path, *, seed: int = 0, track: Track = iter) -> str:
    """Train, account, draw; returns what to print. The noise is seeded: an example, not a model to release."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refuse("output", str(folder), f"a folder that can be made ({error.strerror})") from None
    trained = train(seed)
    accountant = BayesianAccountant(total_steps=STEPS, audit=True)
    curve: list[tuple[int, float, float]] = []
    for step, norms in enumerate(track(list(trained.audit_norms)), start=1):
        accountant.step(norms, noise_std=NOISE_MULTIPLIER * CLIP, sample_rate=SAMPLE_RATE, clip=CLIP)
        if step % 5 == 0:
            curve.append((step, accountant.moments_accountant_epsilon(DELTA), accountant.claim(DELTA).epsilon))
    picture = draw(folder / "epsilon.svg", curve)
    everyone = worst_case_epsilon(noise_multiplier=NOISE_MULTIPLIER, sample_rate=SAMPLE_RATE, steps=STEPS, delta=DELTA)
    return "\n".join(
        [
            f"Digits: {100 * trained.accuracy:.1f} % of unseen digits recognised after {STEPS} private steps.",
            everyone.statement(),
            str(replace(accountant.claim(DELTA), worst_case=None)),  # it stands above, by the tighter accountant
            f"Picture: {picture}",
        ]
    )


def train(seed: int) -> Run:
    """Softmax regression by DP-SGD: Poisson sampling, clipping per example, Gaussian noise, fixed denominator."""
    pixels, labels = _digits()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    x = np.c_[pixels, np.ones(len(pixels))][order]
    y = np.eye(10)[labels[order]]
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    audit = slice(TRAIN, TRAIN + AUDIT)
    weights = np.zeros((x.shape[1], 10))
    norms = np.empty((STEPS, AUDIT))
    for step in range(STEPS):
        errors = _probabilities(x, weights) - y
        # The gradient of one example is the outer product of x and error: its norm is the product of theirs.
        lengths = np.linalg.norm(errors, axis=1) * np.linalg.norm(x, axis=1)
        norms[step] = lengths[audit]
        batch = np.flatnonzero(rng.random(TRAIN) < SAMPLE_RATE)
        factor = np.minimum(1.0, CLIP / np.maximum(lengths[batch], 1e-12))
        total: FloatArray = x[batch].T @ (errors[batch] * factor[:, None])
        total += rng.normal(0.0, NOISE_MULTIPLIER * CLIP, total.shape)
        weights -= LEARNING_RATE * total / (SAMPLE_RATE * TRAIN)
    rest = slice(TRAIN + AUDIT, None)
    right = _probabilities(x[rest], weights).argmax(axis=1) == y[rest].argmax(axis=1)
    return Run(norms, float(right.mean()))


def _probabilities(x: FloatArray, weights: FloatArray) -> FloatArray:
    scores = x @ weights
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def _digits() -> tuple[FloatArray, NDArray[np.int64]]:
    try:
        from sklearn import datasets
    except ImportError:
        raise InvalidInputError("scikit-learn=missing: the demo needs pip install 'bayesdp[demo]'.") from None
    data: Any = cast(Any, datasets).load_digits()
    return np.asarray(data.data, dtype=np.float64), np.asarray(data.target, dtype=np.int64)


def draw(path: Path, curve: list[tuple[int, float, float]]) -> Path:
    """Epsilon over the steps: everyone (moments accountant) and the paper's Bayesian accountant."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidInputError("matplotlib=missing: the picture needs pip install 'bayesdp[demo]'.") from None
    steps, everyone, bayesian = zip(*curve, strict=True)
    figure: Any = Figure(figsize=(7, 4), layout="constrained")
    axes: Any = figure.subplots()
    axes.plot(steps, everyone, label="everyone (moments accountant)", color="#444444")
    axes.plot(steps, bayesian, label="typical records (Bayesian accountant, model-based)", color="#0a7f8c")
    axes.set_xlabel("steps")
    axes.set_ylabel(f"epsilon at delta = {DELTA:g}")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    with cast(Any, matplotlib).rc_context({"svg.hashsalt": "bayesdp"}):  # the same picture, byte for byte, at every run
        figure.savefig(path, metadata={"Date": None})
    return path
