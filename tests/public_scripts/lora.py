"""In the manner of the second half of Opacus' tutorial on text classification: LoRA with peft, ghost clipping."""

import torch
import torch.nn.functional as F
from opacus import PrivacyEngine
from peft import LoraConfig, TaskType, get_peft_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

import bayesdp.opacus  # added


def sentences(count):
    words = torch.randint(1, 60, (count, 8))
    return TensorDataset(words, torch.ones_like(words), torch.zeros_like(words), torch.randint(0, 3, (count,)))


def inputs_of(batch):
    return {"input_ids": batch[0], "attention_mask": batch[1], "token_type_ids": batch[2], "labels": batch[3]}


def main():
    train_dataset, test_dataset = sentences(200), sentences(60)
    train_dataloader = DataLoader(train_dataset, batch_size=40)
    size = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(vocab_size=60, num_labels=3, **size))
    lora_config = LoraConfig(task_type=TaskType.SEQ_CLS, inference_mode=False, r=4, lora_alpha=4, lora_dropout=0.05)
    model_with_lora = get_peft_model(model, lora_config)
    for param in model_with_lora.base_model.bert.encoder.layer[:-1].parameters():
        param.requires_grad = False
    optimizer = torch.optim.AdamW(model_with_lora.parameters(), lr=5e-4, eps=1e-8)
    model_with_lora = model_with_lora.train()
    privacy_engine = PrivacyEngine()
    criterion = nn.CrossEntropyLoss(reduction="mean")
    model, optimizer, criterion, train_dataloader = privacy_engine.make_private(
        module=model_with_lora,
        optimizer=optimizer,
        data_loader=train_dataloader,
        criterion=criterion,
        noise_multiplier=1.0,
        max_grad_norm=0.1,
        grad_sample_mode="ghost",
    )
    watched = bayesdp.opacus.watch(  # added
        model,
        optimizer,
        train_dataloader,
        ledger="run.ledger",
        audit=test_dataset,
        loss=lambda model, batch: F.cross_entropy(model(**inputs_of(batch)).logits, batch[3], reduction="none"),
    )
    for batch in train_dataloader:
        optimizer.zero_grad()
        outputs = model(**inputs_of(batch))
        loss = criterion(outputs[1], batch[3])
        loss.backward()
        optimizer.step()
    print(watched.statement())  # added
    return model
