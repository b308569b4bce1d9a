"""Fine-tune a sentence transformer on SST-2 with LoRA: ghost clipping, a ledger, an audit and a report.

    python examples/lora_sst2.py --data data --model all-MiniLM-L6-v2 -o lora

needs `pip install 'bayesdp[demo,transformers]'`, SST-2 in data/sst2 (docs/recipes.md) and a BERT model in a folder. The
lower layers stay frozen, so their activations are computed once, and each step trains only what is above them: LoRA
matrices in the upper layers, and a linear head. The settings were chosen on validation rows (`--validate`).

Before it sees private data, the whole model learns to tell praise from blame in a few thousand public sentences, which
nobody wrote (`written_reviews.py`). That costs no privacy.

A row of SST-2 is a phrase, and several phrases come from one sentence: everything here is about rows. The test rows are
whole sentences, so shorter phrases than `--words` are left out of the data. That rule looks at one row alone, so it
costs no privacy; audit rows follow it, too.
"""

import argparse
import copy
import json
import time
from pathlib import Path

import numpy as np
import peft
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModel, AutoTokenizer
from written_reviews import written_reviews

import bayesdp
import bayesdp.opacus
from bayesdp.randomness import source
from bayesdp.recipes import load

DELTA, AUDIT_ROWS, LONGEST, AT_ONCE = 1e-5, 128, 64, 128
SEEN = 5  # after how many of the last layers the head sees means over the tokens
VALIDATION_WORDS, SHARED_WORDS = 10, 4
AUDIT_USED_FOR = "the form of the model"  # the first experiments by hand drew their rows from the whole training file
WARM_UP_BATCH = 32
LORA = ("query", "key", "value", "attention.output.dense")


class Phrases(Dataset):
    """What ``frozen_activations`` makes of each row, with its class; the shortest rows first.

    Opacus splits a batch in the order of the data set, so rows of a part have about the same length and need little
    padding.
    """

    def __init__(self, activations, classes):
        order = np.argsort([len(row) for row in activations], kind="stable")
        self.rows = [(activations[number], int(classes[number])) for number in order]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number]


def long_enough(texts, words):
    """Return the places of texts with at least ``words`` words."""
    return np.flatnonzero([len(text.split()) >= words for text in texts.tolist()])


def word_runs(text):
    """Return all runs of SHARED_WORDS words in a text."""
    words = text.split()
    return set(zip(*(words[start:] for start in range(SHARED_WORDS)), strict=False))


def validation_split(texts, held_out):
    """Return places of texts to train on, and of texts to judge by, which resemble test rows and are new to the model.

    Judged are long texts that are held out. What shares a run of words with any of them, as phrases of the same
    sentence do, is not trained on.
    """
    judged = np.intersect1d(held_out, long_enough(texts, VALIDATION_WORDS))
    seen = set().union(*(word_runs(text) for text in texts[judged].tolist()))
    others = np.setdiff1d(np.arange(len(texts)), held_out)
    return np.array([place for place in others if seen.isdisjoint(word_runs(str(texts[place])))], dtype=int), judged


def put_together(rows):
    """Pad the rows of a batch: activations [n, length, width] and mask [n, length], then classes [n]."""
    activations = pad_sequence([row for row, _ in rows], batch_first=True).float()
    lengths = torch.tensor([len(row) for row, _ in rows])
    mask = torch.arange(activations.shape[1]) < lengths[:, None]
    return (activations, mask), torch.tensor([label for _, label in rows])


def mean_over_tokens(activations, mask):
    """Return means of length 1, [n, width], of activations [n, tokens, width]."""
    return nn.functional.normalize((activations * mask[:, :, None]).sum(1))


class UpperLayers(nn.Module):
    """The layers that are trained, and a linear head on means over the tokens of a row after each of SEEN layers.

    The first rows of its input are means after ``earlier`` layers further below; then come the activations of tokens.
    Means have length 1, so gradients of the head are short and leave room below the clip bound for those of LoRA.
    """

    def __init__(self, layers, earlier, width, classes=2):
        super().__init__()
        self.layers, self.earlier = layers, earlier
        self.head = nn.Linear(width * (earlier + 1 + len(layers)), classes, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, rows, mask):
        activations, mask = rows[:, self.earlier :], mask[:, self.earlier :]
        means = [rows[:, : self.earlier].flatten(1), mean_over_tokens(activations, mask)]
        for layer in self.layers:
            activations = layer(activations, mask[:, None, None])
            means.append(mean_over_tokens(activations, mask))
        return self.head(torch.cat(means, dim=1))


def split_model(folder, trained):
    """Return the tokenizer, the lower part of the model, and the last ``trained`` layers. There is no dropout."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(
        folder, local_files_only=True, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    lower, upper = model.encoder.layer[:-trained], model.encoder.layer[-trained:]
    model.encoder.layer = lower
    earlier = min(max(SEEN - 1 - trained, 0), len(lower))
    return tokenizer, model.eval(), UpperLayers(upper, earlier, model.config.hidden_size)


def lower_layers(lower, earlier, batch):
    """Return the input of ``UpperLayers`` and its mask, for a batch of the tokenizer."""
    states, mask = lower(**batch, output_hidden_states=True).hidden_states, batch["attention_mask"].bool()
    means = [mean_over_tokens(state, mask)[:, None] for state in states[-1 - earlier : -1]]
    return torch.cat([*means, states[-1]], dim=1), nn.functional.pad(mask, (earlier, 0), value=True)


def warm_up(tokenizer, lower, upper, sentences):
    """Train all layers and the head on public sentences, the same for every seed of the private run."""
    texts, classes = written_reviews(sentences)
    steps = sentences // WARM_UP_BATCH
    layers = [weight for part in (lower.encoder, upper.layers) for weight in part.parameters()]
    optimizer = torch.optim.AdamW([{"params": layers}, {"params": upper.head.parameters(), "lr": 0.1}], lr=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [1e-4, 0.1], total_steps=steps)
    for step in range(steps):
        part = slice(step * WARM_UP_BATCH, (step + 1) * WARM_UP_BATCH)
        batch = tokenizer(texts[part].tolist(), padding=True, return_tensors="pt")
        logits = upper(*lower_layers(lower, upper.earlier, batch))
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, torch.from_numpy(classes[part])).backward()
        optimizer.step()
        schedule.step()


def add_lora(upper, rank):
    """Freeze everything but new LoRA matrices and the head."""
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(LORA))
    peft.inject_adapter_in_model(config, upper)
    upper.head.requires_grad_(True)
    return upper


@torch.inference_mode()
def frozen_activations(tokenizer, lower, earlier, texts):
    """Return the input of ``UpperLayers`` for each text, [earlier + tokens, width] in half precision."""
    tokens = tokenizer(texts.tolist(), truncation=True, max_length=LONGEST)["input_ids"]
    order = np.argsort([len(text) for text in tokens], kind="stable")
    found = [torch.empty(0)] * len(tokens)
    for places in np.array_split(order, -(-len(order) // AT_ONCE)):
        batch = tokenizer.pad({"input_ids": [tokens[place] for place in places]}, return_tensors="pt")
        with torch.autocast("cpu", torch.bfloat16):  # in half the time; nothing is trained here
            rows, mask = lower_layers(lower, earlier, batch)
        for place, row, length in zip(places, rows, mask.sum(1), strict=True):
            found[place] = row[:length].half()
    return found


@torch.inference_mode()
def accuracy(model, rows):
    """Return the share of rows that the model classifies correctly."""
    model.eval()
    batches = DataLoader(rows, batch_size=AT_ONCE, collate_fn=put_together)
    return sum(int((model(*x).argmax(1) == y).sum()) for x, y in batches) / len(rows)


def fine_tune(upper, train, audit, options):
    """Train the upper layers within ``options.epsilon`` for everyone; every step is in the ledger."""
    loader = DataLoader(train, batch_size=options.batch, collate_fn=put_together)
    rate = 1 / len(loader)
    noise = bayesdp.calibrate(target_epsilon=options.epsilon, sample_rate=rate, steps=options.steps, delta=DELTA)
    matrices = [weight for name, weight in upper.named_parameters() if "lora" in name]
    groups = [{"params": matrices}, {"params": upper.head.weight, "lr": options.head_learning_rate}]
    model, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=upper.train(),
        optimizer=torch.optim.Adam(groups, lr=options.learning_rate),
        criterion=nn.CrossEntropyLoss(),
        data_loader=loader,
        noise_multiplier=noise.noise_multiplier,
        max_grad_norm=options.clip,
        grad_sample_mode="ghost",
    )
    # From the operating system, so that nobody can predict it; or from the seed, and then the ledger says so.
    bayesdp.opacus.SecureNoise(optimizer, source(options.seed or 0, reproducible=options.seed is not None))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer.original_optimizer, 1.0, 0.1, options.steps)
    with (
        bayesdp.opacus.watch(
            model,
            optimizer,
            loader,
            ledger=options.output / "run.ledger",
            audit=audit,
            loss=criterion,
            audit_batch=AT_ONCE,
            steps=options.steps,
            audit_used_for=None if audit is None else AUDIT_USED_FOR,
        ) as watched,
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=AT_ONCE, optimizer=optimizer) as parts,
    ):
        while watched.ledger.steps < options.steps:
            for inputs, classes in parts:
                optimizer.zero_grad()
                criterion(model(*inputs), classes).backward()
                optimizer.step()
                if not optimizer._is_last_step_skipped:
                    schedule.step()
                if watched.ledger.steps == options.steps:
                    break
    return watched


def options_of(arguments=None):
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with sst2/; by default BAYESDP_DATA")
    parser.add_argument("--model", type=Path, required=True, help="folder of a BERT model")
    parser.add_argument("-o", "--output", type=Path, default=Path("lora"), help="new folder for ledger and report")
    parser.add_argument("--epsilon", type=float, default=3.0, help="the worst case for everyone")
    parser.add_argument("--sentences", type=int, default=4800, help="how many public sentences the model learns first")
    parser.add_argument("--layers", type=int, default=1, help="how many of the last layers get LoRA")
    parser.add_argument("--words", type=int, default=7, help="rows with fewer words are not part of the data")
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--head-learning-rate", type=float, default=0.15)
    parser.add_argument("--seed", type=int, help="for experiments, NOT FOR RELEASE: noise and batches follow from it")
    parser.add_argument("--validate", action="store_true", help="judge by validation rows; test and audit rows rest")
    return parser.parse_args(arguments)


def prepare(options):
    """Return the warmed upper layers; rows to train on, to audit and to judge by; and the seconds that it took."""
    started = time.perf_counter()
    dataset = load("sst2", options.data)
    texts = dataset.development.x
    train, audit, judged = np.arange(len(texts)), dataset.audit, dataset.test
    audit = audit.take(long_enough(audit.x, options.words)[:AUDIT_ROWS])
    if options.validate:
        train, places = validation_split(texts, dataset.held_out)
        audit, judged = None, dataset.development.take(places)
    train = dataset.development.take(np.intersect1d(train, long_enough(texts, options.words)))
    tokenizer, lower, upper = split_model(options.model, options.layers)
    warm_up(tokenizer, lower, upper, options.sentences)
    warm = time.perf_counter()
    parts = [
        part and Phrases(frozen_activations(tokenizer, lower, upper.earlier, part.x), part.y)
        for part in (train, audit, judged)
    ]
    return upper, parts, {"warm-up": warm - started, "frozen layers": time.perf_counter() - warm}


def train_and_judge(options, upper, parts, seconds):
    """Fine-tune a copy of what ``prepare`` returned, write ledger and report, and return the figures."""
    train, audit, judged = parts
    started = time.perf_counter()
    if options.seed is not None:
        torch.manual_seed(options.seed)
    options.output.mkdir(parents=True)
    upper = add_lora(copy.deepcopy(upper), options.rank)
    watched = fine_tune(upper, train, audit, options)
    trained = time.perf_counter()
    claims = watched.claims(delta=DELTA)
    watched.ledger.report(options.output / "report.html", claims=claims)
    figures = {"accuracy": accuracy(upper, judged), **claims.to_dict()}
    print(f"{figures['accuracy']:.1%} of {len(judged)} {'validation' if options.validate else 'test'} rows correct.")
    print(claims.statement())
    figures["settings"] = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
    figures["seconds"] = {**seconds, "training": trained - started}
    (options.output / "run.json").write_text(json.dumps(figures, indent=2, allow_nan=False) + "\n")
    return figures


def main(arguments=None):
    """Run the whole example, and return its figures."""
    options = options_of(arguments)
    return train_and_judge(options, *prepare(options))


if __name__ == "__main__":
    main()
