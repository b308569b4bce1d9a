"""A transformer of a few thousand weights and a dozen words, saved as Hugging Face saves models."""

import numpy as np

GOOD, BAD, PLAIN = ("fine", "clever", "moving"), ("dull", "silly", "bad"), ("the", "a", "film", "plot", "is", "and")


def write_transformer(folder, layers=3):
    """Save a tokenizer and a BERT with random weights, always the same; returns the folder."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *GOOD, *BAD, *PLAIN)
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    ends = [(word, words.index(word)) for word in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
    return folder


def phrases(n, seed=0):
    """Phrases with a word of praise (class 1) or of blame (class 0) among other words: texts and classes."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 2, n)
    texts = []
    for label in classes:
        words = [*rng.choice(PLAIN, rng.integers(1, 12)), *rng.choice(GOOD if label else BAD, 2)]
        texts.append(" ".join(rng.permutation(words)))
    return texts, classes
