"""nn.LSTM over batches of a text, as in PyTorch's word language model."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin


def repackage_hidden(h):
    """Wraps hidden states in new tensors, to detach them from their history."""
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid, self.nlayers = nhid, nlayers

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.encoder(input), hidden)
        decoded = self.decoder(output)
        return F.log_softmax(decoded.view(-1, decoded.size(-1)), dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        shape = (self.nlayers, bsz, self.nhid)
        return weight.new_zeros(*shape), weight.new_zeros(shape)


data = (torch.arange(84) * 7 % 11).view(4, -1).t().contiguous()
model = begin(torch, RNNModel(11, 8, 8, 2))
hidden = model.init_hidden(4)
losses = []
for i in range(0, 14, 5):
    source, target = data[i : i + 5], data[i + 1 : i + 6].reshape(-1)
    model.zero_grad()
    hidden = repackage_hidden(hidden)
    output, hidden = model(source, hidden)
    loss = nn.NLLLoss()(output, target)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p.grad, alpha=-1.0)
    losses.append(loss.item())
