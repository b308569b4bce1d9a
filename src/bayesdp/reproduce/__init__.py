"""The paper's experiments, done again: what it printed, the same computed here, and what right accounting gives.

experiment.py       what an experiment is, and what it is asked for
weibull.py          synthetic gradients and their accounting, for the first two
composition.py      Figure 1
sigma_epsilon.py    the two figures on sigma of the supplement
lambda_epsilon.py   the figure on lambda of the supplement
motivation.py       the example of section 3, simulated
table1.py           Table 1; table1_story.py: what it says
leakage.py          Figure 2
published_sgd.py    training as the authors' code does it
published_accounting.py     the authors' accountant, also of such a run
published_images.py         the two image models
published_variational.py    variational inference as the paper describes it
run.py              one of them or all: JSON, picture, progress
page.py             the page of the documentation, from the results

"As published" means what the authors' public code does, and is labelled so everywhere; it is not a bound
(docs/theory.md).
"""

from bayesdp.reproduce.targets import TARGETS, reproduce

__all__ = ["TARGETS", "reproduce"]
