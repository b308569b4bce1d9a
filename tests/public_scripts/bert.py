"""In the manner of Opacus' tutorial on text classification: the last layer of BERT, virtual batches."""

import torch
import torch.nn.functional as F
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

import bayesdp.opacus  # added


def sentences(count):
    words = torch.randint(1, 60, (count, 8))
    return TensorDataset(words, torch.ones_like(words), torch.zeros_like(words), torch.randint(0, 3, (count,)))


def inputs_of(batch):
    return {"input_ids": batch[0], "attention_mask": batch[1], "token_type_ids": batch[2], "labels": batch[3]}


def small_bert():
    size = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    return BertForSequenceClassification(BertConfig(vocab_size=60, num_labels=3, **size))


def main():
    train_dataset, test_dataset = sentences(200), sentences(60)
    train_dataloader = DataLoader(train_dataset, batch_size=40)
    model = small_bert()
    for p in model.parameters():
        p.requires_grad = False
    for layer in (model.bert.encoder.layer[-1], model.bert.pooler, model.classifier):
        for p in layer.parameters():
            p.requires_grad = True
    model = model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, eps=1e-8)
    privacy_engine = PrivacyEngine()
    model, optimizer, train_dataloader = privacy_engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=train_dataloader,
        noise_multiplier=1.0,
        max_grad_norm=0.1,
    )
    watched = bayesdp.opacus.watch(  # added
        model,
        optimizer,
        train_dataloader,
        ledger="run.ledger",
        audit=test_dataset,
        loss=lambda model, batch: F.cross_entropy(model(**inputs_of(batch)).logits, batch[3], reduction="none"),
    )
    for _epoch in range(1, 3):
        with BatchMemoryManager(
            data_loader=train_dataloader, max_physical_batch_size=16, optimizer=optimizer
        ) as memory_safe_data_loader:
            for _step, batch in enumerate(memory_safe_data_loader):
                optimizer.zero_grad()
                outputs = model(**inputs_of(batch))
                loss = outputs[0]
                loss.backward()
                optimizer.step()
    print(watched.statement())  # added
    return model
