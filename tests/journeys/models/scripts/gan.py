"""Two networks, two optimizers, detach."""

import torch
import torch.nn as nn
from begin import begin, normal

generator = begin(torch, nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())
begin(torch, discriminator, seed=2)
opt_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
loss_fn = nn.BCELoss()
losses = []
for step in range(5):
    real = torch.tensor(normal(16, 2)) + 2.0
    z = torch.tensor(normal(16, 4))
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)

    opt_d.zero_grad()
    fake = generator(z)
    loss_d = (loss_fn(discriminator(real), ones) + loss_fn(discriminator(fake.detach()), zeros)) / 2
    loss_d.backward()
    opt_d.step()

    opt_g.zero_grad()
    loss_g = loss_fn(discriminator(fake), ones)
    loss_g.backward()
    opt_g.step()
    losses += [loss_d.item(), loss_g.item()]
