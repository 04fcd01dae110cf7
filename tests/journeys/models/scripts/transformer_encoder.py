"""nn.TransformerEncoder with a padding mask, sinusoidal positions, mean over real tokens."""

import math

import torch
import torch.nn as nn
from begin import begin


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=50):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.position = PositionalEncoding(8)
        layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        mask = x == 0
        y = self.encoder(self.position(self.embed(x) * math.sqrt(8)), src_key_padding_mask=mask)
        keep = (~mask).unsqueeze(-1).float()
        return self.head((y * keep).sum(1) / keep.sum(1))


tokens = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0], [9, 10, 11, 1, 0]])
labels = torch.tensor([0, 1, 2])
model = begin(torch, Classifier())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(4):
    loss = nn.functional.cross_entropy(model(tokens), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
