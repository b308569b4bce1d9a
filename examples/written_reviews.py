"""Sentences about films that nobody wrote: drawn at random from lists of words and phrases, with their sentiment.

They are public, so a model may learn from them before it sees private data (`lora_sst2.py`).
"""

import re
import tomllib
from pathlib import Path

import numpy as np

LISTS = tomllib.loads(Path(__file__).with_name("review_words.toml").read_text())
WORDS = {kind: re.split("; " if ";" in text else " ", " ".join(text.split())) for kind, text in LISTS.items()}
GOOD = {"own": "good", "other": "bad", "verb": "succeed", "other_verb": "fail"}
GOOD |= {"quality": "merits", "other_quality": "faults", "phrases": "praise", "forms": "praise_forms"}
BAD = {"own": "bad", "other": "good", "verb": "fail", "other_verb": "succeed"}
BAD |= {"quality": "faults", "other_quality": "merits", "phrases": "blame", "forms": "blame_forms"}
EITHER = {"merit": "merits", "fault": "faults", "part": "parts", "adverb": "adverbs", "subject": "subjects"}
PHRASES, OWN_FORMS = 0.35, 0.25  # the shares of clauses that are phrases, and that have a form of praise or blame alone
TOGETHER = ("{} , {}", "{} and {}", "{} , and {}", "{} -- {}", "{} . {}", "{} ; {}", "{} , {} , and {}")
BUT = ("though {} , {}", "even if {} , {}", "{} , but {}", "{} , yet {}", "{} but ultimately {}", "while {} , {}")


def clause(rng, good):
    """Return a few words that praise, or that blame."""
    kinds = EITHER | (GOOD if good else BAD)

    def one(kind):
        words = WORDS[kinds.get(kind, kind)]
        return words[int(rng.integers(len(words)))]

    drawn = rng.random()
    if drawn < PHRASES:
        return one("phrases")
    form = one("forms" if drawn < PHRASES + OWN_FORMS else "both")
    return re.sub(r"{(\w+)}", lambda found: one(found[1]), form)


def written_reviews(count, seed=0):
    """Return ``count`` sentences and their classes, 1 for praise; what comes last decides where they are mixed."""
    rng = np.random.default_rng(seed)
    texts, classes = [], rng.integers(2, size=count)
    for good in classes.astype(bool).tolist():
        kind = rng.choice(3, p=(0.35, 0.4, 0.25))
        if kind == 0:
            text = clause(rng, good)
        elif kind == 1:
            form = rng.choice(TOGETHER)
            text = form.format(*(clause(rng, good) for _ in range(form.count("{}"))))
        else:
            text = rng.choice(BUT).format(clause(rng, not good), clause(rng, good))
        texts.append(text)
    return np.array(texts), classes
