"""Recursion over trees: a child-sum LSTM whose graph differs from sample to sample, with cells of one's own."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, numbers
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


@dataclass
class Tree:
    word: int
    label: int
    children: list[Tree] = field(default_factory=list)

    def size(self):
        return 1 + sum(c.size() for c in self.children)


def grow(depth):
    count = int(numbers.integers(0, 3)) if depth else 0
    return Tree(
        int(numbers.integers(0, 20)),
        int(numbers.integers(0, 3)),
        [grow(depth - 1) for _ in range(count)],
    )


class Trees(Dataset):
    def __init__(self, n):
        self.trees = [grow(2) for _ in range(n)]

    def __len__(self):
        return len(self.trees)

    def __getitem__(self, index):
        return self.trees[index]


class ChildSumTreeLSTM(nn.Module):
    def __init__(self, vocab: int, in_dim: int, mem_dim: int, classes: int = 3):
        super().__init__()
        self.mem_dim = mem_dim
        self.emb = nn.Embedding(vocab, in_dim, padding_idx=0)
        self.ioux, self.iouh = nn.Linear(in_dim, 3 * mem_dim), nn.Linear(mem_dim, 3 * mem_dim)
        self.fx, self.fh = nn.Linear(in_dim, mem_dim), nn.Linear(mem_dim, mem_dim)
        self.out = nn.Linear(mem_dim, classes)

    def node_forward(self, inputs: Tensor, child_c: Tensor, child_h: Tensor):
        child_h_sum = torch.sum(child_h, dim=0, keepdim=True)
        iou = self.ioux(inputs) + self.iouh(child_h_sum)
        i, o, u = torch.split(iou, iou.size(1) // 3, dim=1)
        i, o, u = torch.sigmoid(i), torch.sigmoid(o), torch.tanh(u)
        f = torch.sigmoid(self.fh(child_h) + self.fx(inputs).repeat(len(child_h), 1))
        c = torch.mul(i, u) + torch.sum(torch.mul(f, child_c), dim=0, keepdim=True)
        return c, torch.mul(o, torch.tanh(c))

    def forward(self, tree: Tree):
        states, found = [], []
        for child in tree.children:
            state, below = self(child)
            states.append(state)
            found += below
        inputs = self.emb(torch.tensor([tree.word]))
        if not states:
            child_c = inputs.detach().new(1, self.mem_dim).fill_(0.0).requires_grad_()
            child_h = inputs.detach().new(1, self.mem_dim).fill_(0.0).requires_grad_()
        else:
            child_c, child_h = (torch.cat(x, dim=0) for x in zip(*states))
        state = self.node_forward(inputs, child_c, child_h)
        return state, [*found, (self.out(state[1]), tree.label)]


torch.manual_seed(0)
data = Trees(4)
loader = DataLoader(data, batch_size=2, shuffle=False, collate_fn=list)
model = begin(torch, ChildSumTreeLSTM(20, 4, 6))
with torch.no_grad():
    model.emb.weight[model.emb.padding_idx].fill_(0)
optimizer = torch.optim.Adagrad(
    filter(lambda p: p.requires_grad, model.parameters()), lr=0.05, weight_decay=1e-4
)
losses = []
for batch in loader:
    optimizer.zero_grad()
    total, count = 0.0, 0
    for tree in batch:
        (_, _), found = model(tree)
        logits = torch.cat([x for x, _ in found])
        labels = torch.tensor([y for _, y in found], dtype=torch.long)
        loss = F.cross_entropy(logits, labels, reduction="sum")
        (loss / tree.size()).backward()
        total += loss.item()
        count += tree.size()
    optimizer.step()
    losses += [total / count, model.emb.weight.grad.norm().item()]
