"""PPO: GAE, minibatches, clipped losses, a separate warm up of the critic, one Adam."""

import numpy as np
import torch
import torch.nn as nn
from begin import begin, normal, numbers
from torch.distributions.categorical import Categorical


def layer_init(layer, std=2**0.5, bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.trunk = nn.Sequential(layer_init(nn.Linear(obs, 16)), nn.Tanh())
        self.critic = layer_init(nn.Linear(16, 1), std=1.0)
        self.actor = layer_init(nn.Linear(16, act), std=0.01)

    def get_value(self, x):
        return self.critic(self.trunk(x))

    def get_action_and_value(self, x, action=None):
        hidden = self.trunk(x)
        probs = Categorical(logits=self.actor(hidden))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden)


device = torch.device("cuda") if torch.cuda.is_available() else torch.get_default_device()
agent = begin(torch, Agent(4, 3)).to(device)
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)
T, N = 8, 2
losses = []
obs = torch.zeros((T, N, 4)).to(device)
actions = torch.zeros((T, N)).to(device)
logprobs = torch.zeros((T, N)).to(device)
rewards = torch.zeros((T, N)).to(device)
dones = torch.zeros((T, N)).to(device)
values = torch.zeros((T, N)).to(device)
# the critic alone at first: the actor has no gradient yet
for _ in range(2):
    x = torch.Tensor(normal(6, 4)).to(device)
    v_loss = (agent.get_value(x).squeeze(-1) - 1.0).pow(2).mean()
    optimizer.zero_grad()
    v_loss.backward()
    optimizer.step()
    losses.append(v_loss.item())
for update in range(2):
    optimizer.param_groups[0]["lr"] = (1.0 - update / 2) * 2.5e-3
    for step in range(T):
        obs[step] = torch.Tensor(normal(N, 4)).to(device)
        with torch.no_grad():
            action = torch.tensor(numbers.integers(0, 3, N))
            action, logprob, _, value = agent.get_action_and_value(obs[step], action)
            values[step] = value.flatten()
        actions[step] = action
        logprobs[step] = logprob
        rewards[step] = torch.tensor(normal(N)).to(device).view(-1)
        dones[step] = torch.Tensor((numbers.random(N) < 0.2).astype("float32")).to(device)
    with torch.no_grad():
        next_value = agent.get_value(obs[-1]).reshape(1, -1)
        advantages = torch.zeros_like(rewards).to(device)
        lastgaelam = 0
        for t in reversed(range(T)):
            nextnonterminal = 1.0 - dones[t]
            nextvalues = next_value if t == T - 1 else values[t + 1]
            delta = rewards[t] + 0.99 * nextvalues * nextnonterminal - values[t]
            advantages[t] = lastgaelam = delta + 0.99 * 0.95 * nextnonterminal * lastgaelam
        returns = advantages + values
    b_obs = obs.reshape((-1, 4))
    b_logprobs = logprobs.reshape(-1)
    b_actions = actions.reshape((-1,))
    b_advantages = advantages.reshape(-1)
    b_returns = returns.reshape(-1)
    b_values = values.reshape(-1)
    b_inds = np.arange(T * N)
    for epoch in range(2):
        numbers.shuffle(b_inds)
        for start in range(0, T * N, 8):
            mb_inds = b_inds[start : start + 8]
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                b_obs[mb_inds], b_actions.long()[mb_inds]
            )
            logratio = newlogprob - b_logprobs[mb_inds]
            ratio = logratio.exp()
            with torch.no_grad():
                approx_kl = ((ratio - 1) - logratio).mean()
                clipfrac = ((ratio - 1.0).abs() > 0.2).float().mean().item()
            mb_adv = b_advantages[mb_inds]
            mb_adv = (mb_adv - mb_adv.mean()) / (mb_adv.std() + 1e-8)
            pg_loss1 = -mb_adv * ratio
            pg_loss2 = -mb_adv * torch.clamp(ratio, 1 - 0.2, 1 + 0.2)
            pg_loss = torch.max(pg_loss1, pg_loss2).mean()
            newvalue = newvalue.view(-1)
            v_clipped = b_values[mb_inds] + torch.clamp(newvalue - b_values[mb_inds], -0.2, 0.2)
            v_loss_max = torch.max(
                (newvalue - b_returns[mb_inds]) ** 2, (v_clipped - b_returns[mb_inds]) ** 2
            )
            v_loss = 0.5 * v_loss_max.mean()
            loss = pg_loss - 0.01 * entropy.mean() + v_loss * 0.5
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
        losses.append(loss.item())
        losses.append(approx_kl.item() + clipfrac)
    y_pred, y_true = b_values.cpu().numpy(), b_returns.cpu().numpy()
    losses.append(float(1 - np.var(y_true - y_pred) / np.var(y_true)))
TOLERANCE = 2e-4
