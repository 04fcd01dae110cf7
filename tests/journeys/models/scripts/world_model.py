"""A recurrent state space model: cells stepped by hand, discrete states with straight gradients, balanced divergences, lambda returns."""

import torch
import torch.distributions as td
from begin import begin, normal, numbers
from torch import nn
from torch.nn import functional as F


class OneHotDist(td.OneHotCategorical):
    def mode_straight(self):
        mode = F.one_hot(torch.argmax(self.logits, dim=-1), self.logits.shape[-1]).float()
        return mode.detach() + self.logits - self.logits.detach()


class RSSM(nn.Module):
    def __init__(self, obs=5, act=2, deter=8, groups=2, classes=3):
        super().__init__()
        self.groups, self.classes, self.deter = groups, classes, deter
        self.pre = nn.Sequential(nn.Linear(groups * classes + act, 8), nn.ELU())
        self.cell = nn.GRUCell(8, deter)
        self.prior = nn.Linear(deter, groups * classes)
        self.post = nn.Linear(deter + obs, groups * classes)

    def initial(self, batch, device=None):
        return dict(
            deter=torch.zeros(batch, self.deter, device=device),
            stoch=torch.zeros([batch, self.groups * self.classes], device=device),
        )

    def step(self, state, action, embed):
        x = self.pre(torch.cat([state["stoch"], action], -1))
        deter = self.cell(x, state["deter"])
        prior = self.prior(deter).unflatten(-1, (self.groups, self.classes))
        post = self.post(torch.cat([deter, embed], -1)).unflatten(-1, (self.groups, self.classes))
        stoch = OneHotDist(logits=post).mode_straight().flatten(-2)
        return {"deter": deter, "stoch": stoch}, prior, post


class World(nn.Module):
    def __init__(self):
        super().__init__()
        self.rssm = RSSM()
        self.decoder = nn.Linear(8 + 6, 5)
        self.reward = nn.Linear(8 + 6, 1)
        self.value = nn.Linear(8 + 6, 1)


def lambda_return(reward, value, pcont, bootstrap, lambda_):
    next_values = torch.cat([value[1:], bootstrap[None]], 0)
    inputs = reward + pcont * next_values * (1 - lambda_)
    last, outputs = bootstrap, []
    for t in reversed(range(len(inputs))):
        last = inputs[t] + pcont[t] * lambda_ * last
        outputs.append(last)
    return torch.stack(list(reversed(outputs)), dim=0)


world = begin(torch, World())
optimizer = torch.optim.Adam(world.parameters(), lr=6e-3, eps=1e-5)
obs, act = torch.tensor(normal(4, 3, 5)), torch.tensor(normal(4, 3, 2))
reward = torch.tensor(normal(4, 3))
done = torch.tensor(numbers.random((4, 3)) < 0.3)
losses = []
for step in range(3):
    state = world.rssm.initial(3)
    feats, priors, posts = [], [], []
    for t in range(obs.size(0)):
        keep = (~done[t]).float().unsqueeze(-1)
        state = {k: v * keep for k, v in state.items()}
        state, prior, post = world.rssm.step(state, act[t], obs[t])
        feats.append(torch.cat([state["deter"], state["stoch"]], -1))
        priors.append(prior)
        posts.append(post)
    feat, prior, post = torch.stack(feats), torch.stack(priors), torch.stack(posts)
    dist = lambda x: td.Independent(OneHotDist(logits=x), 1)
    kl_lhs = td.kl.kl_divergence(dist(post.detach()), dist(prior))
    kl_rhs = td.kl.kl_divergence(dist(post), dist(prior.detach()))
    kl = 0.8 * torch.clamp(kl_lhs, min=0.1).mean() + 0.2 * kl_rhs.clip(min=0.1).mean()
    image = td.Independent(td.Normal(world.decoder(feat), 1.0), 1).log_prob(obs).mean()
    rew = td.Normal(world.reward(feat).squeeze(-1), 1).log_prob(reward).mean()
    value = world.value(feat).squeeze(-1)
    target = lambda_return(
        reward[:-1], value[:-1].detach(), 0.9 * (1 - done[:-1].float()), value[-1].detach(), 0.95
    )
    critic = F.smooth_l1_loss(value[:-1], target, beta=0.5)
    entropy = dist(post).entropy().mean()
    loss = kl - image - rew + critic - 1e-3 * entropy
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(world.parameters(), 100.0, error_if_nonfinite=True)
    optimizer.step()
    losses += [x.item() for x in (loss, kl, entropy, critic)]
