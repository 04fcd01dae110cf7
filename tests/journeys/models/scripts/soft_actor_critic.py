"""Soft actor-critic: a squashed Gaussian, two critics, a learned temperature, polyak averaging."""

import copy
import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn.functional as F
from begin import begin, normal, numbers
from torch import nn, optim
from torch.distributions import Normal
from torch.distributions.transformed_distribution import TransformedDistribution
from torch.distributions.transforms import TanhTransform

LOG_STD_MAX, LOG_STD_MIN = 2, -5
Transition = namedtuple("Transition", ("state", "action", "reward", "next_state", "done"))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(3, 16)
        self.fc_mean = nn.Linear(16, 2)
        self.fc_logstd = nn.Linear(16, 2)
        self.register_buffer("action_scale", torch.tensor((2.0 - -2.0) / 2.0, dtype=torch.float32))
        self.register_buffer("action_bias", torch.tensor((2.0 + -2.0) / 2.0, dtype=torch.float32))

    def forward(self, x):
        x = F.relu(self.fc1(x))
        log_std = torch.tanh(self.fc_logstd(x))
        return self.fc_mean(x), LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1)

    def get_action(self, x, noise):
        mean, log_std = self(x)
        std = log_std.exp()
        dist = Normal(mean, std)
        x_t = mean + std * noise
        y_t = torch.tanh(x_t)
        action = y_t * self.action_scale + self.action_bias
        log_prob = dist.log_prob(x_t)
        log_prob -= torch.log(self.action_scale * (1 - y_t.pow(2)) + 1e-6)
        log_prob = log_prob.sum(1, keepdim=True)
        squashed = TransformedDistribution(dist, [TanhTransform(cache_size=1)])
        return action, log_prob, squashed.log_prob(y_t.clamp(-0.999, 0.999)).sum(-1)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x, a):
        return self.net(torch.cat([x, a], dim=1))


class ReplayBuffer:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, n, rng):
        batch = Transition(*zip(*rng.sample(list(self.memory), n)))
        return [torch.from_numpy(np.stack(x)).float() for x in batch]


actor, qf1, qf2 = begin(torch, Actor()), begin(torch, Critic(), 1), begin(torch, Critic(), 2)
qf1_target, qf2_target = copy.deepcopy(qf1), copy.deepcopy(qf2)
q_optimizer = optim.Adam(list(qf1.parameters()) + list(qf2.parameters()), lr=1e-2)
actor_optimizer = optim.Adam(list(actor.parameters()), lr=3e-3)
target_entropy = -torch.prod(torch.Tensor((2,))).item()
log_alpha = torch.zeros(1, requires_grad=True)
alpha = log_alpha.exp().item()
a_optimizer = optim.Adam([log_alpha], lr=1e-2)
rb, rng = ReplayBuffer(100), random.Random(0)
for _ in range(40):
    rb.push(normal(3), normal(2), normal(1), normal(3), np.float32([numbers.random() < 0.1]))
losses = []
for step in range(4):
    s, a, r, s2, d = rb.sample(8, rng)
    with torch.no_grad():
        a2, logp2, _ = actor.get_action(s2, torch.tensor(normal(8, 2)))
        q_next = torch.min(qf1_target(s2, a2), qf2_target(s2, a2)) - alpha * logp2
        goal = r.flatten() + (1 - d.flatten()) * 0.99 * (q_next).view(-1)
    q1, q2 = qf1(s, a).view(-1), qf2(s, a).view(-1)
    q_loss = F.mse_loss(q1, goal) + F.mse_loss(q2, goal)
    q_optimizer.zero_grad()
    q_loss.backward()
    q_optimizer.step()
    if step % 2 == 0:
        for _ in range(2):
            pi, log_pi, check = actor.get_action(s, torch.tensor(normal(8, 2)))
            q_pi = torch.min(qf1(s, pi), qf2(s, pi))
            actor_loss = ((alpha * log_pi) - q_pi).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            with torch.no_grad():
                _, log_pi, _ = actor.get_action(s, torch.tensor(normal(8, 2)))
            alpha_loss = (-log_alpha.exp() * (log_pi + target_entropy)).mean()
            a_optimizer.zero_grad()
            alpha_loss.backward()
            a_optimizer.step()
            alpha = log_alpha.exp().item()
        losses += [actor_loss.item(), alpha_loss.item(), alpha, check.mean().item()]
    for q, target in ((qf1, qf1_target), (qf2, qf2_target)):
        for param, target_param in zip(q.parameters(), target.parameters()):
            target_param.data.copy_(0.05 * param.data + (1 - 0.05) * target_param.data)
    losses.append(q_loss.item())
TOLERANCE = 2e-4
