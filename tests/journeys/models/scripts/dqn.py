"""Q-learning with a target network by deepcopy and a soft update."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal, numbers

q = begin(torch, nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 2)))
target = copy.deepcopy(q)
target.requires_grad_(False)
optimizer = torch.optim.AdamW(q.parameters(), lr=1e-2, amsgrad=True)
losses = []
for step in range(5):
    state, following = torch.tensor(normal(8, 3)), torch.tensor(normal(8, 3))
    action = torch.tensor(numbers.integers(0, 2, 8)).unsqueeze(1)
    reward = torch.tensor(normal(8))
    value = q(state).gather(1, action).squeeze(1)
    with torch.no_grad():
        goal = reward + 0.9 * target(following).max(1).values
    loss = F.smooth_l1_loss(value, goal)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(q.parameters(), 0.1)
    optimizer.step()
    for p, t in zip(q.parameters(), target.parameters()):
        t.data.copy_(0.1 * p.data + 0.9 * t.data)
    losses.append(loss.item())
