"""Convolutions of several widths over embedded words, the maximum over time."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin


class TextCNN(nn.Module):
    def __init__(self, vocab=15, dim=6, widths=(2, 3), channels=4, classes=2):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim, padding_idx=0)
        self.convs = nn.ModuleList([nn.Conv1d(dim, channels, k) for k in widths])
        self.dropout = nn.Dropout(p=0.0)
        self.fc = nn.Linear(len(widths) * channels, classes)

    def forward(self, x):
        x = self.embedding(x).transpose(1, 2)
        x = [F.relu(conv(x)).max(dim=2)[0] for conv in self.convs]
        return self.fc(self.dropout(torch.cat(x, 1)))


tokens = torch.tensor([[1, 2, 3, 4, 5, 0], [6, 7, 8, 9, 0, 0], [10, 11, 12, 13, 14, 1]])
labels = torch.tensor([0, 1, 0])
model = begin(torch, TextCNN())
optimizer = torch.optim.Adamax(model.parameters(), lr=1e-2)
losses = []
for step in range(4):
    loss = F.cross_entropy(model(tokens), labels, weight=torch.tensor([0.3, 0.7]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
