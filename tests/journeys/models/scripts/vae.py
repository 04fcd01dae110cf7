"""A variational autoencoder as in PyTorch's examples, with noise that is given."""

import torch
from begin import begin, normal
from torch import nn, optim
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16, 12)
        self.fc21 = nn.Linear(12, 3)
        self.fc22 = nn.Linear(12, 3)
        self.fc3 = nn.Linear(3, 12)
        self.fc4 = nn.Linear(12, 16)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.as_tensor(normal(*mu.shape))
        return mu + eps * std

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 16))
        z = self.reparameterize(mu, logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


x = torch.sigmoid(torch.tensor(normal(10, 1, 4, 4)))
model = begin(torch, VAE())
optimizer = optim.Adam(model.parameters(), lr=1e-3)
losses = []
for step in range(5):
    optimizer.zero_grad()
    recon, mu, logvar = model(x)
    bce = F.binary_cross_entropy(recon, x.view(-1, 16), reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    loss = bce + kld
    loss.backward()
    optimizer.step()
    losses.append(loss.item() / len(x))
