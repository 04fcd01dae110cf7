"""A recommender: bags of features, crossed towers, sampled negatives, an iterable data set, weights for samples, and ranks at the end."""

import torch
import torch.nn as nn
from begin import begin, numbers
from torch.nn import functional as F
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)


class Clicks(IterableDataset):
    def __init__(self, n):
        super().__init__()
        self.n = n
        self.rows = [
            {
                "user": int(numbers.integers(0, 12)),
                "item": int(numbers.integers(0, 9)),
                "tags": numbers.integers(1, 15, int(numbers.integers(1, 4))),
                "dense": numbers.normal(size=3).astype("float32"),
                "label": float(numbers.integers(0, 2)),
            }
            for _ in range(n)
        ]

    def __iter__(self):
        yield from self.rows

    def __len__(self):
        return self.n


def collate(rows):
    tags = [torch.as_tensor(r["tags"]) for r in rows]
    offsets = torch.tensor([0] + [len(t) for t in tags[:-1]]).cumsum(dim=0)
    fixed = default_collate([{k: v for k, v in r.items() if k != "tags"} for r in rows])
    padded = nn.utils.rnn.pad_sequence(tags, batch_first=True, padding_value=0)
    return {**fixed, "tags": torch.cat(tags), "offsets": offsets, "padded": padded}


class CrossNet(nn.Module):
    def __init__(self, dim, layers=2):
        super().__init__()
        self.kernels = nn.ParameterList([nn.Parameter(torch.zeros(dim, 1)) for _ in range(layers)])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(dim)) for _ in range(layers)])

    def forward(self, x0):
        x = x0
        for w, b in zip(self.kernels, self.biases):
            x = x0 * (x @ w) + b + x
        return x


class DeepFM(nn.Module):
    def __init__(self, k=4):
        super().__init__()
        self.embeddings = nn.ModuleDict({"user": nn.Embedding(12, k), "item": nn.Embedding(9, k)})
        self.bag = nn.EmbeddingBag(15, k, mode="mean")
        self.dense = nn.Linear(3, k, bias=False)
        self.linear = nn.ModuleDict({n: nn.Embedding(m, 1) for n, m in (("user", 12), ("item", 9))})
        self.cross = CrossNet(4 * k)
        self.deep = nn.Sequential(nn.Linear(4 * k, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 1))
        self.out = nn.Linear(4 * k, 1)

    def forward(self, batch):
        fields = [emb(batch[name]) for name, emb in self.embeddings.items()]
        fields += [self.bag(batch["tags"], batch["offsets"]), self.dense(batch["dense"])]
        x = torch.stack(fields, dim=1)
        fm = 0.5 * (x.sum(1).square() - x.square().sum(1)).sum(1)
        wide = torch.cat([emb(batch[n]) for n, emb in self.linear.items()], 1).sum(1)
        flat = x.flatten(start_dim=1)
        return fm + wide + self.deep(flat).squeeze(-1) + self.out(self.cross(flat)).view(-1)


def auc(scores, labels):
    order = scores.argsort()
    ranks = torch.empty_like(scores)
    ranks[order] = torch.arange(1, len(scores) + 1, dtype=scores.dtype)
    pos = labels == 1
    n, m = pos.sum(), (~pos).sum()
    return ((ranks[pos].sum() - n * (n + 1) / 2) / (n * m)).item()


data = Clicks(24)
loader = DataLoader(data, batch_size=8, collate_fn=collate)
model = begin(torch, DeepFM())
sparse = [p for n, p in model.named_parameters() if "embeddings" in n or "bag" in n]
dense = [p for n, p in model.named_parameters() if not ("embeddings" in n or "bag" in n)]
optimizers = [torch.optim.Adagrad(sparse, lr=0.05), torch.optim.AdamW(dense, lr=1e-2, amsgrad=True)]
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(1.5))
losses, scores, labels = [], [], []
for batch in loader:
    logits = model(batch)
    loss = criterion(logits, batch["label"].float())
    # in-batch negatives of the two towers
    u = F.normalize(model.embeddings["user"](batch["user"]), dim=-1)
    v = F.normalize(model.embeddings["item"](batch["item"]), dim=-1)
    sims = u @ v.T / 0.2
    same = batch["item"][:, None] == batch["item"][None, :]
    sims = sims.masked_fill(same.fill_diagonal_(False), torch.finfo(sims.dtype).min)
    loss = loss + 0.1 * F.cross_entropy(sims, torch.arange(len(sims)))
    bpr = -F.logsigmoid(sims.diagonal() - sims.roll(1, 1).diagonal().clamp(min=-10)).mean()
    loss = loss + 0.1 * bpr
    for o in optimizers:
        o.zero_grad()
    loss.backward()
    for o in optimizers:
        o.step()
    losses += [loss.item(), float((batch["padded"] > 0).sum())]
    scores.append(logits.detach())
    labels.append(batch["label"])
scores, labels = torch.cat(scores), torch.cat(labels)
losses.append(auc(scores, labels))
top = torch.topk(scores.view(4, 6), 2, dim=1).indices
hits = torch.gather(labels.view(4, 6), 1, top)
losses.append(((2.0**hits - 1) / torch.log2(torch.arange(2) + 2.0)).sum().item())
weights = torch.bincount(labels.long(), minlength=2).float().reciprocal()[labels.long()]
sampler = WeightedRandomSampler(weights, num_samples=10, replacement=True)
losses.append(float(len(list(sampler))))
first, second = random_split(range(10), [0.7, 0.3])
losses += [float(len(first)), float(len(second))]
TOLERANCE = 2e-4
