"""Features of texts: a transformer in a folder, as Hugging Face saves it, stays frozen and reads each text by itself.

The features are the mean activations of a text's tokens after several layers, each scaled to length 1, side by side.
Texts go through the model in groups of equal padded length, and each group is filled up to a fixed size: what comes out
for a text depends neither on the other texts nor on how many there are.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.optional import needs
from bayesdp.recipes.feature_cache import Features
from bayesdp.validation import InvalidInputError, refuse

VARIABLE = "BAYESDP_MODEL"
LAYERS = 3
"""The number of layers, counted from the last, whose activations are used."""
LONGEST = 64
"""The number of tokens that are read of a text."""
_FILES = ("config.json", "model.safetensors", "tokenizer.json")
_STEP = 8  # padded lengths are multiples of it
_TEXTS_AT_ONCE = 16


def model_folder(model: str | Path | None) -> Path:
    """Return the folder of the model: ``model``, or the one that BAYESDP_MODEL names.

    Raises InvalidInputError if there is none, or if a file is missing in it.
    """
    given = model if model is not None else os.environ.get(VARIABLE) or None
    if given is None:
        raise refuse("model", None, f"the folder of a transformer with {_listed(_FILES)}, as --model or in {VARIABLE}")
    folder = Path(given)
    if missing := [file for file in _FILES if not (folder / file).is_file()]:
        raise refuse("model", str(folder), f"the folder of a transformer with {_listed(missing)} in it")
    return folder


def model_fingerprint(folder: Path) -> str:
    """Return the SHA-256 of configuration, weights and tokenizer: everything that features depend on."""
    digest = hashlib.sha256()
    for name in _FILES:
        content = (folder / name).read_bytes()
        digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def load_model(folder: Path) -> tuple[Any, Any]:
    """Return the tokenizer and the transformer of a folder, in evaluation mode; nothing is fetched from elsewhere.

    Raises InvalidInputError if transformers cannot load them, weights are missing or the tokenizer knows more words
    than the model, and MissingLibraryError without the library.
    """
    with needs("transformers", "computing features of texts"):
        from transformers import AutoModel, AutoTokenizer
    with _quiet():
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model, found = AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
        except InvalidInputError:
            raise
        except Exception as error:  # transformers raises errors of many classes for a damaged file
            reason = " ".join(str(error).split())[:200]
            raise refuse("model", str(folder), f"a model that transformers can load ({reason})") from None
    # Layers without weights would start at random; the pooler, which some models lack, is not used.
    if missing := sorted(name for name in found["missing_keys"] if not name.startswith("pooler.")):
        raise refuse("model", str(folder), f"weights of all layers; {missing[0]} is missing")
    # Else a row with such a word would make the run fail, and give itself away.
    if len(tokenizer) > model.config.vocab_size:
        raise refuse(
            "model", str(folder), f"a tokenizer with at most {model.config.vocab_size} words, as the model has"
        )
    return tokenizer, model.eval()


def encoder(folder: Path) -> Callable[[NDArray[Any]], Features]:
    """Return the function that computes features [n, d] of texts [n]; d is the width of the model times its layers."""
    tokenizer, model = load_model(folder)
    import torch

    longest = min(LONGEST, model.config.max_position_embeddings // _STEP * _STEP)

    def compute(texts: NDArray[Any]) -> Features:
        tokens: list[list[int]] = tokenizer(texts.tolist(), truncation=True, max_length=longest)["input_ids"]
        features: Features | None = None
        for places in _groups(tokens):
            ids, mask = padded([tokens[place] for place in places], _TEXTS_AT_ONCE)
            with torch.inference_mode():
                layers = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
                means = [mean_of_tokens(activations, mask) for activations in layers[-LAYERS:]]
                units = [rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-6) for rows in means]
                whole = (torch.cat(units, dim=1) / len(units) ** 0.5)[: len(places)].numpy()
            if features is None:
                features = np.empty((len(texts), whole.shape[1]), np.float32)
            features[places] = whole
        return np.empty((0, 0), np.float32) if features is None else features

    return compute


def padded(tokens: Sequence[Sequence[int]], rows: int) -> tuple[Any, Any]:
    """Return token numbers and mask [rows, length], padded to the least multiple of 8; missing rows have one token."""
    import torch

    length = max(_steps(text) for text in tokens) * _STEP
    ids, mask = torch.zeros((rows, length), dtype=torch.long), torch.zeros((rows, length), dtype=torch.long)
    mask[:, 0] = 1  # a row without any token has no mean, and no attention
    for row, text in enumerate(tokens):
        ids[row, : len(text)] = torch.tensor(text)
        mask[row, : len(text)] = 1
    return ids, mask


def mean_of_tokens(activations: Any, mask: Any) -> Any:
    """Return the mean [n, d] of activations [n, length, d] over the tokens that the mask [n, length] names."""
    weights = (mask / mask.sum(dim=1, keepdim=True)).to(activations.dtype)
    return (activations * weights[:, :, None]).sum(dim=1)


def _groups(tokens: Sequence[Sequence[int]]) -> Generator[list[int]]:
    """Yield the places of texts that go through the model together: of equal padded length, a few at a time."""
    steps = np.array([_steps(text) for text in tokens])
    for length in np.unique(steps):
        places = np.flatnonzero(steps == length).tolist()
        for start in range(0, len(places), _TEXTS_AT_ONCE):
            yield places[start : start + _TEXTS_AT_ONCE]


def _steps(text: Sequence[int]) -> int:
    return max(1, -(-len(text) // _STEP))


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Keep transformers from printing bars and tables while it loads a model."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
