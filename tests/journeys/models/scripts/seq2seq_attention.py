"""An encoder, a decoder of cells with additive attention, teacher forcing."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin

VOCAB, HIDDEN = 9, 8


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.Wa = nn.Linear(HIDDEN, HIDDEN)
        self.Ua = nn.Linear(HIDDEN, HIDDEN)
        self.Va = nn.Linear(HIDDEN, 1)

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query).unsqueeze(1) + self.Ua(keys)))
        weights = F.softmax(scores.squeeze(2).unsqueeze(1), dim=-1)
        return torch.bmm(weights, keys).squeeze(1)


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.encoder = nn.GRU(HIDDEN, HIDDEN, batch_first=True)
        self.attention = Attention()
        self.cell = nn.GRUCell(2 * HIDDEN, HIDDEN)
        self.out = nn.Linear(HIDDEN, VOCAB)

    def forward(self, source, target):
        keys, hidden = self.encoder(self.embed(source))
        h, logits = hidden[0], []
        for t in range(target.size(1) - 1):
            context = self.attention(h, keys)
            h = self.cell(torch.cat((self.embed(target[:, t]), context), dim=1), h)
            logits.append(self.out(h))
        return torch.stack(logits, dim=1)


source = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
target = torch.tensor([[0, 4, 3, 2, 1], [0, 8, 7, 6, 5]])
model = begin(torch, Seq2Seq())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []
for step in range(4):
    logits = model(source, target)
    loss = F.cross_entropy(logits.reshape(-1, VOCAB), target[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
