"""Embeddings of users and items with biases; the dataset is a class of its own."""

import torch
import torch.nn as nn
from begin import begin, numbers
from torch.utils.data import DataLoader, Dataset


class Ratings(Dataset):
    def __init__(self, n):
        self.users = numbers.integers(0, 5, n)
        self.items = numbers.integers(0, 7, n)
        self.ratings = numbers.normal(size=n).astype("float32")

    def __len__(self):
        return len(self.users)

    def __getitem__(self, i):
        return int(self.users[i]), int(self.items[i]), torch.tensor(self.ratings[i])


class MF(nn.Module):
    def __init__(self, users, items, dim):
        super().__init__()
        self.user, self.item = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)

    def forward(self, u, i):
        dot = (self.user(u) * self.item(i)).sum(dim=1)
        return dot + self.user_bias(u).squeeze() + self.item_bias(i).squeeze()


model = begin(torch, MF(5, 7, 3))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
losses = []
for epoch in range(2):
    for users, items, ratings in DataLoader(Ratings(16), batch_size=8):
        loss = nn.functional.mse_loss(model(users, items), ratings)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
