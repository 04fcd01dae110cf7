"""Self-supervision: BYOL with an EMA teacher, Barlow Twins' off-diagonal, a queue of negatives."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal


def off_diagonal(x):
    n, m = x.shape
    assert n == m
    return x.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()


class EMA:
    def __init__(self, beta):
        self.beta = beta

    def update_average(self, old, new):
        return new if old is None else old * self.beta + (1 - self.beta) * new


def update_moving_average(ema, ma, current):
    for cur, old in zip(current.parameters(), ma.parameters()):
        old.data = ema.update_average(old.data, cur.data)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(inplace=True))
        self.projector = nn.Linear(12, 6)
        self.predictor = nn.Sequential(nn.Linear(6, 6), nn.PReLU(), nn.Linear(6, 6))
        self.bn = nn.BatchNorm1d(6, affine=False)
        self.register_buffer("queue", F.normalize(torch.tensor(normal(6, 8)), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        batch_size = keys.shape[0]
        ptr = int(self.queue_ptr)
        self.queue[:, ptr : ptr + batch_size] = keys.T
        self.queue_ptr[0] = (ptr + batch_size) % self.queue.shape[1]

    def forward(self, x):
        return self.projector(self.encoder(x))


online = begin(torch, Net())
teacher = copy.deepcopy(online)
for p in teacher.parameters():
    p.requires_grad = False
optimizer = torch.optim.RAdam(online.parameters(), lr=2e-2)
ema, losses = EMA(0.9), []
for step in range(7):
    x1, x2 = torch.tensor(normal(4, 6)), torch.tensor(normal(4, 6))
    z1, z2 = online(x1), online(x2)
    with torch.no_grad():
        t1, t2 = teacher(x1).detach_(), teacher(x2).detach_()
    byol = 0.0
    if step % 2:
        byol = 2 - 2 * F.cosine_similarity(online.predictor(z1), t2, dim=-1).mean()
    c = online.bn(z1).T @ online.bn(z2)
    c.div_(4)
    on_diag = torch.diagonal(c).add_(-1).pow_(2).sum()
    barlow = on_diag + 0.005 * off_diagonal(c).pow_(2).sum()
    q, k = F.normalize(z1, dim=1), F.normalize(t2, dim=1)
    l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
    l_neg = torch.einsum("nc,ck->nk", [q, online.queue.clone().detach()])
    moco = F.cross_entropy(torch.cat([l_pos, l_neg], dim=1) / 0.5, torch.zeros(4, dtype=torch.long))
    online._dequeue_and_enqueue(k)
    loss = byol + barlow + moco
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update_moving_average(ema, teacher, online)
    losses.append(loss.item())
TOLERANCE = 5e-4
