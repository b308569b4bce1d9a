"""Fine-tune a sentence transformer on SST-2 with LoRA: ghost clipping, a ledger, an audit and a report.

    python examples/lora_sst2.py --data data --model all-MiniLM-L6-v2 -o lora

needs `pip install 'bayesdp[demo,transformers]'`, SST-2 in data/sst2 (docs/recipes.md) and a BERT model in a folder. The
lower layers stay frozen, so their activations are computed once, and each step trains only what is above them: LoRA
matrices in the upper layers, and a linear head. The settings were chosen on validation rows (`--validate`).

A row of SST-2 is a phrase, and several phrases come from one sentence: everything here is about rows.
"""

import argparse
import hashlib
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

import bayesdp
import bayesdp.opacus
from bayesdp.recipes import load

DELTA, AUDIT_ROWS, LONGEST, AT_ONCE = 1e-5, 500, 64, 128
LORA = ("query", "key", "value", "attention.output.dense")


class Phrases(Dataset):
    """Activations below the trained layers, in half precision, with the class of each row; the shortest rows first.

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


def put_together(rows):
    """Pad the rows of a batch: activations [n, length, width] and mask [n, length], then classes [n]."""
    activations = pad_sequence([row for row, _ in rows], batch_first=True).float()
    lengths = torch.tensor([len(row) for row, _ in rows])
    mask = torch.arange(activations.shape[1]) < lengths[:, None]
    return (activations, mask), torch.tensor([label for _, label in rows])


class UpperLayers(nn.Module):
    """The layers that are trained, and a linear head on means over the tokens of a row, below and after each layer.

    Means have length 1, so gradients of the head are short and leave room below the clip bound for those of LoRA.
    """

    def __init__(self, layers, width, classes=2):
        super().__init__()
        self.layers = layers
        self.head = nn.Linear(width * (len(layers) + 1), classes, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, activations, mask):
        weights = mask / mask.sum(1, keepdim=True)
        means = [(activations * weights[:, :, None]).sum(1)]
        for layer in self.layers:
            activations = layer(activations, mask[:, None, None])
            means.append((activations * weights[:, :, None]).sum(1))
        return self.head(torch.cat([nn.functional.normalize(mean) for mean in means], dim=1))


def split_model(folder, trained):
    """Return the tokenizer, the frozen part of the model, and the last ``trained`` layers. There is no dropout."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(
        folder, local_files_only=True, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    lower, upper = model.encoder.layer[:-trained], model.encoder.layer[-trained:]
    model.encoder.layer = lower
    return tokenizer, model.eval(), UpperLayers(upper, model.config.hidden_size)


def add_lora(upper, rank):
    """Freeze everything but new LoRA matrices and the head."""
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(LORA))
    peft.inject_adapter_in_model(config, upper)
    upper.head.requires_grad_(True)
    return upper


@torch.inference_mode()
def frozen_activations(tokenizer, lower, texts):
    """Return what the frozen layers make of each text, [tokens, width] in half precision, in the order of the texts."""
    tokens = tokenizer(texts.tolist(), truncation=True, max_length=LONGEST)["input_ids"]
    order = np.argsort([len(text) for text in tokens], kind="stable")
    found = [torch.empty(0)] * len(tokens)
    for places in np.array_split(order, -(-len(order) // AT_ONCE)):
        batch = tokenizer.pad({"input_ids": [tokens[place] for place in places]}, return_tensors="pt")
        with torch.autocast("cpu", torch.bfloat16):  # in half the time; nothing is trained here
            activations = lower(**batch).last_hidden_state
        for place, row in zip(places, activations, strict=True):
            found[place] = row[: len(tokens[place])].half()
    return found


def kept_activations(tokenizer, lower, texts, path):
    """Return ``frozen_activations``; with a path, from that file if it is of these texts and layers, else into it.

    The file is as private as the texts.
    """
    if path is None:
        return frozen_activations(tokenizer, lower, texts)
    weights = [weight.numpy() for weight in lower.state_dict().values()]
    about = hashlib.sha256(b"".join(np.ascontiguousarray(array).data for array in (texts, *weights))).hexdigest()
    if not path.exists() or str(np.load(path)["about"]) != about:
        found = frozen_activations(tokenizer, lower, texts)
        path.touch(mode=0o600)
        np.savez(path, rows=torch.cat(found).numpy(), lengths=[len(row) for row in found], about=about)
    with np.load(path) as kept:
        return torch.from_numpy(kept["rows"]).split(kept["lengths"].tolist())


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


def main(arguments=None):
    """Run the whole example, and return its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with sst2/; by default BAYESDP_DATA")
    parser.add_argument("--model", type=Path, required=True, help="folder of a BERT model")
    parser.add_argument("-o", "--output", type=Path, default=Path("lora"), help="new folder for ledger and report")
    parser.add_argument("--epsilon", type=float, default=3.0, help="the worst case for everyone")
    parser.add_argument("--layers", type=int, default=2, help="how many of the last layers get LoRA")
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--head-learning-rate", type=float, default=0.1)
    parser.add_argument("--keep", type=Path, help="file that keeps the activations of frozen layers for other runs")
    parser.add_argument("--seed", type=int, help="for experiments: noise and batches follow from it, too")
    parser.add_argument("--validate", action="store_true", help="judge by validation rows; test and audit rows rest")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    if options.seed is not None:
        torch.manual_seed(options.seed)
    dataset = load("sst2", options.data)
    everything = [dataset.development, dataset.audit, dataset.test]
    tokenizer, lower, upper = split_model(options.model, options.layers)
    activations = kept_activations(tokenizer, lower, np.concatenate([part.x for part in everything]), options.keep)
    classes = np.concatenate([part.y for part in everything])
    first, second = len(dataset.development), len(dataset.development) + len(dataset.audit)
    train, judged = np.arange(first), np.arange(second, len(classes))
    if options.validate:
        train, judged = np.setdiff1d(train, dataset.held_out), dataset.held_out
    train, audit, judged = (
        Phrases([activations[place] for place in places], classes[places])
        for places in (train, np.arange(first, min(first + AUDIT_ROWS, second)), judged)
    )
    cached = time.perf_counter()
    options.output.mkdir(parents=True)
    watched = fine_tune(add_lora(upper, options.rank), train, None if options.validate else audit, options)
    trained = time.perf_counter()
    claims = watched.claims(delta=DELTA)
    watched.ledger.report(options.output / "report.html", claims=claims)
    figures = {"accuracy": accuracy(upper, judged), **claims.to_dict()}
    print(f"{figures['accuracy']:.1%} of {len(judged)} {'validation' if options.validate else 'test'} rows correct.")
    print(claims.statement())
    figures["settings"] = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
    figures["seconds"] = {"frozen layers": cached - started, "training": trained - cached}
    (options.output / "run.json").write_text(json.dumps(figures, indent=2, allow_nan=False) + "\n")
    return figures


if __name__ == "__main__":
    main()
