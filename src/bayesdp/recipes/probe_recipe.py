"""A linear probe on public features: whitened by two noisy releases, trained by noisy gradients, all in one ledger."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np

from bayesdp.guarantees.calibration import calibrate
from bayesdp.recipes.catalogue import ProbeChoice
from bayesdp.recipes.checkpoint import WHITENING, read_arrays, write_arrays
from bayesdp.recipes.datasets import Rows
from bayesdp.recipes.features import EXTRACTORS
from bayesdp.recipes.linear_probe import ProbeRows, fit_probe, new_weights
from bayesdp.recipes.public_basis import Basis, stroke_basis
from bayesdp.recipes.recipe_run import Fitted, RecipeRun
from bayesdp.recipes.release import NoisySums
from bayesdp.recipes.sgd import Descent, SgdSettings
from bayesdp.recipes.whitening import Whitening, release_centre, release_shape
from bayesdp.validation import FloatArray, refuse


def fit(run: RecipeRun, choice: ProbeChoice) -> Fitted:
    """Train on development rows of a data set whose inputs are features of length 1; audit rows go into the ledger."""
    if choice.centre + choice.shape >= 1:
        raise refuse("centre + shape", choice.centre + choice.shape, "less than 1: the rest is for training")
    # One Gaussian release with noise multiplier z is worth as much as several with the same sum of 1 / z^2.
    one = calibrate(target_epsilon=run.target_epsilon, sample_rate=1.0, steps=1, delta=run.delta).noise_multiplier
    settings = SgdSettings(
        steps=choice.steps,
        sample_rate=1.0,
        clip=choice.clip,
        noise_multiplier=one * math.sqrt(choice.steps / (1 - choice.centre - choice.shape)),
        learning_rate=choice.learning_rate,
        momentum=choice.momentum,
        average=choice.average,
    )
    checkpoint = run.checkpoint({**asdict(choice), **settings.to_dict()})
    basis = _basis(run.features, choice.directions)
    dataset = run.dataset if basis is None else run.dataset.with_features(basis.project)
    train, audit = dataset.development, dataset.audit
    whitening = _whitening(train, audit, choice, one, run)
    rows = ProbeRows(whitening.apply(train.x), train.y, dataset.classes)
    others = ProbeRows(whitening.apply(audit.x), audit.y, dataset.classes)
    weights = fit_probe(
        rows,
        settings,
        ledger=run.ledger,
        randomness=run.randomness,
        audit=others,
        after=_releases(choice),
        checkpoint=checkpoint,
        track=run.track,
    )
    return Fitted(
        arrays=_folded(weights, whitening, basis),
        accuracy=others.accuracy(weights),
        classify="argmax over classes of weights @ (features - centre)",
        baseline=lambda: _baseline(rows, others, settings),
    )


def _basis(extractor: str, directions: int) -> Basis | None:
    if not directions:
        return None
    chosen = EXTRACTORS[extractor]
    return stroke_basis(chosen, f"{chosen.name}-{chosen.version}", directions)


def _releases(choice: ProbeChoice) -> int:
    return 1 + (choice.shape > 0)


def _whitening(train: Rows, audit: Rows, choice: ProbeChoice, one: float, run: RecipeRun) -> Whitening:
    """Release it, or go on with what was released: what was lost in a crash is not released again."""
    ledger, path = run.ledger, None if run.folder is None else run.folder / WHITENING
    whitening = Whitening(np.zeros(train.x.shape[1]), None)
    if path is not None and not path.exists() and ledger.steps > _releases(choice):
        raise refuse("file", str(path), "the whitening with which the steps of this run were taken; it is missing")
    if path is not None and path.exists():
        arrays, about = read_arrays(path)
        if about != {"run": ledger.run}:
            raise refuse("file", str(path), f"the whitening of run {ledger.run}")
        whitening = Whitening(arrays["centre"], arrays.get("matrix"))
    for number in range(ledger.steps, _releases(choice)):
        sums = NoisySums(
            ledger=ledger,
            randomness=run.randomness,
            clip=1.0,
            noise_multiplier=one / math.sqrt(choice.shape if number else choice.centre),
            sample_rate=1.0,
            source="shape" if number else "centre",
        )
        if number:
            whitening = release_shape(train.x, whitening, sums, floor=choice.floor, step=number, audit=audit.x)
        else:
            whitening = release_centre(train.x, sums, step=number, audit=audit.x)
        if path is not None:
            write_arrays(path, whitening.arrays(), {"run": ledger.run})
    return whitening


def _folded(weights: FloatArray, whitening: Whitening, basis: Basis | None) -> dict[str, FloatArray]:
    """One matrix for all: the lengths by which rows are divided do not change which score is highest."""
    whole = weights if whitening.matrix is None else weights @ whitening.matrix.T
    whole, centre = (whole, whitening.centre) if basis is None else basis.back(whole, whitening.centre)
    return {"weights": whole, "centre": centre}


def _baseline(rows: ProbeRows, audit: ProbeRows, settings: SgdSettings) -> float:
    """Not private: accuracy on audit rows of the same training without noise, clipped alike, with more steps."""
    settings = replace(settings, steps=4 * settings.steps, average=0.0)
    descent = Descent(new_weights(rows.features, rows.classes), settings)
    for number in range(settings.steps):
        descent.update(rows.clipped_sum(descent.weights, settings.clip) / len(rows), number)
    return audit.accuracy(descent.result)
