"""Knowledge graphs: complex embeddings, rotations, self-adversarial negatives, filtered ranks; a script in the manner of one file with argparse and logging."""

import argparse
import logging
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, numbers


class KGEModel(nn.Module):
    def __init__(self, model_name, nentity, nrelation, hidden_dim, gamma):
        super(KGEModel, self).__init__()
        self.model_name, self.epsilon = model_name, 2.0
        self.gamma = nn.Parameter(torch.Tensor([gamma]), requires_grad=False)
        self.embedding_range = nn.Parameter(
            torch.Tensor([(gamma + self.epsilon) / hidden_dim]), requires_grad=False
        )
        self.entity_embedding = nn.Parameter(torch.zeros(nentity, hidden_dim * 2))
        nn.init.uniform_(
            self.entity_embedding, a=-self.embedding_range.item(), b=self.embedding_range.item()
        )
        self.relation_embedding = nn.Parameter(
            torch.zeros(nrelation, hidden_dim * (1 if model_name == "RotatE" else 2))
        )
        if model_name not in ["RotatE", "ComplEx"]:
            raise ValueError(f"model {model_name} not supported")

    def forward(self, head, relation, tail):
        h = torch.index_select(self.entity_embedding, dim=0, index=head.reshape(-1)).view(
            *head.shape, -1
        )
        r = torch.index_select(self.relation_embedding, dim=0, index=relation).unsqueeze(1)
        t = torch.index_select(self.entity_embedding, dim=0, index=tail.view(-1)).view(
            *tail.shape, -1
        )
        return getattr(self, self.model_name)(h, r, t)

    def ComplEx(self, head, relation, tail):
        re_head, im_head = torch.chunk(head, 2, dim=2)
        re_relation, im_relation = torch.chunk(relation, 2, dim=2)
        h, r = torch.complex(re_head, im_head), torch.complex(re_relation, im_relation)
        t = torch.complex(*torch.chunk(tail, 2, dim=2))
        return (h * r * t.conj()).real.sum(dim=2)

    def RotatE(self, head, relation, tail):
        pi = 3.14159265358979323846
        re_head, im_head = torch.chunk(head, 2, dim=2)
        re_tail, im_tail = torch.chunk(tail, 2, dim=2)
        phase = relation / (self.embedding_range.item() / pi)
        re_r, im_r = torch.cos(phase), torch.sin(phase)
        re_score = re_head * re_r - im_head * im_r - re_tail
        im_score = re_head * im_r + im_head * re_r - im_tail
        score = torch.stack([re_score, im_score], dim=0).norm(dim=0)
        return self.gamma.item() - score.sum(dim=2)


def parse_args(args=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--adversarial_temperature", "-a", default=1.0, type=float)
    parser.add_argument("--regularization", "-r", default=1e-3, type=float)
    parser.add_argument("-lr", "--learning_rate", default=0.05, type=float)
    parser.add_argument("--cuda", action="store_true")
    return parser.parse_args(args)


def train_step(model, optimizer, positive, negative, weight, args):
    model.train()
    optimizer.zero_grad()
    if args.cuda:
        positive, negative = positive.cuda(), negative.cuda()
    h, r, t = positive.unbind(1)
    n = model(h[:, None], r, negative)
    n = (F.softmax(n * args.adversarial_temperature, dim=1).detach() * F.logsigmoid(-n)).sum(dim=1)
    p = F.logsigmoid(model(h[:, None], r, t[:, None])).squeeze(dim=1)
    positive_loss = -(weight * p).sum() / weight.sum()
    negative_loss = -(weight * n).sum() / weight.sum()
    loss = (positive_loss + negative_loss) / 2
    reg = args.regularization * (
        model.entity_embedding.norm(p=3) ** 3 + model.relation_embedding.norm(p=3).norm(p=3) ** 3
    )
    (loss + reg).backward()
    optimizer.step()
    return {"positive": positive_loss.item(), "regularization": reg.item(), "loss": loss.item()}


@torch.no_grad()
def test_step(model, triples, known):
    model.eval()
    logs = []
    for h, r, t in triples.tolist():
        scores = model(torch.LongTensor([[h]]), torch.LongTensor([r]), torch.arange(10)[None])
        bias = torch.zeros(1, 10)
        for other in known.get((h, r), []):
            if other != t:
                bias[0, other] = -100.0
        argsort = torch.argsort(scores + bias, dim=1, descending=True)
        ranking = (argsort[0] == t).nonzero(as_tuple=False)
        assert ranking.size(0) == 1
        logs.append(1 + ranking.item())
    ranks = torch.tensor(logs, dtype=torch.float64)
    return {"MRR": (1 / ranks).mean().item(), "HITS@3": (ranks <= 3).double().mean().item()}


args = parse_args([])
logging.basicConfig(format="%(asctime)s %(levelname)-8s %(message)s", level=logging.WARNING)
losses = []
for name in ("ComplEx", "RotatE"):
    model = KGEModel(name, 10, 3, 4, 6.0)
    gamma, reach = model.gamma.item(), model.embedding_range.item()
    begin(torch, model)
    model.gamma.data.fill_(gamma), model.embedding_range.data.fill_(reach)
    logging.info(
        "Parameter: %s", [(n, str(p.size()), p.requires_grad) for n, p in model.named_parameters()]
    )
    optimizer = torch.optim.Adam(
        filter(lambda p: p.requires_grad, model.parameters()), lr=args.learning_rate
    )
    for step in range(2):
        triples = torch.LongTensor(numbers.integers(0, 3, (6, 3)).tolist())
        triples[:, 2] = torch.from_numpy(numbers.integers(0, 10, 6))
        negative = torch.from_numpy(numbers.integers(0, 10, (6, 4)))
        weight = torch.sqrt(1 / torch.Tensor([4.0, 5, 6, 4, 8, 5]))
        losses += list(train_step(model, optimizer, triples, negative, weight, args).values())
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "checkpoint")
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "args": vars(args)},
            path,
        )
        stored = torch.load(path, map_location="cpu", weights_only=False)
        model.load_state_dict(stored["model"])
        optimizer.load_state_dict(stored["optimizer"])
    known = {}
    for h, r, t in triples.tolist():
        known.setdefault((h, r), []).append(t)
    losses += list(test_step(model, triples, known).values())
TOLERANCE = 2e-4
