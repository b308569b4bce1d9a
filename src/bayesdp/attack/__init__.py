"""A lab that tries to break this project's own claims, as `bayesdp attack` runs it.

finding.py          a claim beside a lower bound of the truth, and the verdict; how often a bug was caught; rankings
lab.py              the list of attacks; runs one or all of them, writes JSON and a picture
loss_walks.py       exact adversaries: what choosing steps, or stopping, by looking can gain, by backward induction
exact_subjects.py   runs that an adversary may steer, whose claims must stand
exact_events.py     members, levels and the gate, against the best event
exact_laws.py       several rows, selection, other ways to draw batches, guesses: against the best event of a known law
exact_traps.py      what theory says is no bound: it must break
small_training.py   a small training run, made many times at once; what an attacker knows of it
lower_bounds.py     epsilon from below, by counting right and wrong guesses
one_run.py          epsilon from below, from a single run with many canaries
tilted.py           Monte Carlo for failures too rare to be seen, with confidence bounds
published.py        the paper's accountant as published, where it is no bound
planted.py          broken copies
picture.py          pictures of what was found
findings_page.py    the tables of docs/attack.md
detectors.py        attackers that look at one copy, right or broken, and return a p-value

Each other module is one attack: a function ``attack(options)`` that yields findings. Subjects (what is attacked) and
attackers (how) are apart, so that every claim meets every attacker that applies to it.
"""

ATTACKS = ("exact", "simulation", "game", "ranking", "replay", "power", "coverage", "tightness")
"""The modules of this folder that are attacks, in the order in which ``all`` carries them out."""
