"""Train with the Trainer of Hugging Face: PrivateTrainer in its place. Random weights, and sentences made up here."""

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

import bayesdp.opacus
from bayesdp.transformers import PrivateTrainer


class Sentences(Dataset):
    """Eight words each, of a vocabulary of a hundred; the label says whether the first word is a frequent one."""

    def __init__(self, records):
        self.words = torch.randint(0, 100, (records, 8))

    def __len__(self):
        return len(self.words)

    def __getitem__(self, number):
        words = self.words[number]
        return {"input_ids": words, "labels": int(words[0] < 50)}


config = BertConfig(
    vocab_size=100,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    hidden_dropout_prob=0.0,  # dropout would make claims about shares estimates
    attention_probs_dropout_prob=0.0,
)
model = BertForSequenceClassification(config)
model.bert.embeddings.position_embeddings.requires_grad_(False)  # shared by all records: Opacus cannot tell whose it is
model.bert.embeddings.token_type_embeddings.requires_grad_(False)

people, audit = bayesdp.opacus.split_audit(Sentences(2000), seed=0)
trainer = PrivateTrainer(
    model,
    TrainingArguments(output_dir="run", per_device_train_batch_size=64, max_steps=10, use_cpu=True, report_to="none"),
    train_dataset=people,
    noise_multiplier=1.0,
    max_grad_norm=1.0,
    ledger="sentences.ledger",
    audit=audit,
    steps=10,
    report="report.html",
)
trainer.train()
