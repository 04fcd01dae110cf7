"""Characters by nn.RNN, the hidden state handed on, clipping."""

import torch
import torch.nn as nn
from begin import begin

text = "the quick brown fox jumps over the lazy dog and runs away "
chars = sorted(set(text))
index = {c: i for i, c in enumerate(chars)}
tokens = torch.tensor([index[c] for c in text])


class CharRNN(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.embed = nn.Embedding(size, hidden)
        self.rnn = nn.RNN(hidden, hidden, num_layers=2, batch_first=True)
        self.fc = nn.Linear(hidden, size)

    def forward(self, x, h=None):
        y, h = self.rnn(self.embed(x), h)
        return self.fc(y), h


model = begin(torch, CharRNN(len(chars), 16))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss()
losses, h = [], None
for step in range(4):
    x = tokens[step * 8 : step * 8 + 8].unsqueeze(0)
    y = tokens[step * 8 + 1 : step * 8 + 9].unsqueeze(0)
    logits, h = model(x, h)
    h = h.detach()
    loss = criterion(logits.view(-1, len(chars)), y.view(-1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    losses.append(loss.item())
