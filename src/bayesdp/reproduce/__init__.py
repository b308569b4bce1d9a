"""The paper's experiments, repeated: as printed, as the authors' procedure gives them, and accounted for correctly.

experiment.py       what an experiment is: options, result, verdicts
targets.py          computes one experiment or all of them; writes JSON and pictures
document.py         the documentation page, from the results; its words are in templates/
composition.py      Figure 1
sigma_epsilon.py    the supplement's two figures on sigma
lambda_epsilon.py   the supplement's figure on lambda
motivation.py       the example of section 3, simulated
table1.py           Table 1
recipes.py          Table 1 with our own recipes
printed_table.py    what Table 1 prints, for both
leakage.py          Figure 2
published/          the authors' procedures: accountant, training, models, synthetic gradients

"As published" means what the authors' public code does. It is labelled so everywhere, and is not a bound
(docs/theory.md).
"""

from bayesdp.reproduce.targets import TARGETS, reproduce

__all__ = ["TARGETS", "reproduce"]
