"""Graphs by scatter: GCN with degrees, attention over edges, coarsening by unique edges, pooling."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal, numbers


def scatter_softmax(src, index, n):
    peak = torch.full((n, *src.shape[1:]), float("-inf")).scatter_reduce(
        0, index[:, None].expand_as(src), src, reduce="amax", include_self=True
    )
    out = (src - peak[index]).exp()
    total = torch.zeros(n, *src.shape[1:]).index_add_(0, index, out)
    return out / (total[index] + 1e-16)


class GCNConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o, bias=False)
        self.bias = nn.Parameter(torch.zeros(o))

    def forward(self, x, edge_index, edge_weight=None):
        row, col = edge_index
        n = x.size(0)
        edge_weight = torch.ones(row.numel()) if edge_weight is None else edge_weight
        loops = torch.arange(n)
        row, col = torch.cat([row, loops]), torch.cat([col, loops])
        edge_weight = torch.cat([edge_weight, edge_weight.new_ones(n)])
        deg = torch.zeros(n).scatter_add_(0, col, edge_weight)
        deg_inv_sqrt = deg.pow(-0.5)
        deg_inv_sqrt.masked_fill_(deg_inv_sqrt == float("inf"), 0)
        norm = deg_inv_sqrt[row] * edge_weight * deg_inv_sqrt[col]
        x = self.lin(x)
        out = torch.zeros_like(x)
        out.index_add_(0, col, norm.view(-1, 1) * x[row])
        return out + self.bias


class GATConv(nn.Module):
    def __init__(self, i, o, heads=2):
        super().__init__()
        self.heads, self.o = heads, o
        self.lin = nn.Linear(i, heads * o, bias=False)
        self.att = nn.Parameter(torch.empty(1, heads, 2 * o))
        nn.init.xavier_uniform_(self.att)

    def forward(self, x, edge_index):
        x = self.lin(x).view(-1, self.heads, self.o)
        row, col = edge_index[0], edge_index[1]
        alpha = (torch.cat([x[row], x[col]], dim=-1) * self.att).sum(dim=-1)
        alpha = scatter_softmax(F.leaky_relu(alpha, 0.2), col, x.size(0))
        out = x.new_zeros(x.shape).index_add(0, col, x[row] * alpha.unsqueeze(-1))
        return out.flatten(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GCNConv(5, 8), GATConv(8, 4)
        self.lin = nn.Linear(16, 3)

    def forward(self, x, edge_index, batch):
        x = F.relu(self.conv1(x, edge_index))
        x = F.elu(self.conv2(x, edge_index))
        size = int(batch.max()) + 1
        mean = torch.zeros(size, x.size(1)).index_reduce_(0, batch, x, "mean", include_self=False)
        top = torch.zeros(size, x.size(1)).scatter_reduce_(
            0, batch[:, None].expand_as(x), x, "amax", include_self=False
        )
        return F.log_softmax(self.lin(torch.cat([mean, top], 1)), dim=-1)


model = begin(torch, Net())
edge_index = torch.tensor(numbers.integers(0, 9, (2, 30)))
edge_index = edge_index[:, edge_index[0] != edge_index[1]]
edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
edge_index, counts = torch.unique(edge_index, dim=1, return_counts=True)
batch = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])
target = torch.tensor([0, 2, 1])
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05, weight_decay=5e-4)
losses = [float(edge_index.size(1)), float((counts * edge_index[0]).sum())]
x = torch.tensor(normal(9, 5))
for epoch in range(4):
    model.train()
    optimizer.zero_grad()
    out = model(x, edge_index, batch)
    loss = F.nll_loss(out, target)
    loss.backward()
    optimizer.step()
    pred = out.argmax(dim=1)
    losses += [loss.item(), (pred == target).float().mean().item()]
