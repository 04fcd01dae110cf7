"""REINFORCE with Categorical, discounted returns, a bandit of two states."""

import torch
import torch.nn as nn
from begin import begin, normal, numbers
from torch.distributions import Categorical

policy = begin(torch, nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
eps = torch.finfo(torch.float32).eps
losses = []
for episode in range(4):
    log_probs, rewards, entropies = [], [], []
    for t in range(5):
        state = torch.from_numpy(normal(4)).unsqueeze(0)
        m = Categorical(logits=policy(state))
        action = torch.tensor([int(numbers.integers(0, 3))])
        log_probs.append(m.log_prob(action))
        entropies.append(m.entropy())
        rewards.append(float(numbers.normal()))
    R, returns = 0.0, []
    for r in rewards[::-1]:
        R = r + 0.99 * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    policy_loss = [-log_prob * R for log_prob, R in zip(log_probs, returns)]
    optimizer.zero_grad()
    loss = torch.cat(policy_loss).sum() - 0.01 * torch.cat(entropies).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
