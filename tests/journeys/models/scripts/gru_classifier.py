"""A bidirectional GRU over padded sequences, the last real step chosen by gather."""

import torch
import torch.nn as nn
from begin import begin

lengths = torch.tensor([3, 5, 2, 4])
tokens = torch.tensor([[1, 2, 3, 0, 0], [4, 5, 6, 1, 2], [3, 3, 0, 0, 0], [6, 5, 4, 3, 0]])
labels = torch.tensor([0, 1, 1, 0])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 6, padding_idx=0)
        self.gru = nn.GRU(6, 5, batch_first=True, bidirectional=True)
        self.head = nn.Linear(10, 2)

    def forward(self, x, lengths):
        y, _ = self.gru(self.embedding(x))
        last = (lengths - 1).view(-1, 1, 1).expand(-1, 1, y.size(2))
        return self.head(y.gather(1, last).squeeze(1))


model = begin(torch, Classifier())
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
losses = []
for step in range(4):
    loss = nn.functional.cross_entropy(model(tokens, lengths), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
