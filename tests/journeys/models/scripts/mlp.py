"""A classifier with a DataLoader, Adam, evaluation under no_grad."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, inputs, hidden, classes):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = torch.tanh(self.fc2(x))
        return self.out(x)


device = torch.get_default_device()
data = TensorDataset(torch.tensor(normal(48, 10)), torch.arange(48) % 3)
loader = DataLoader(data, batch_size=16, shuffle=False)
model = begin(torch, Net(10, 32, 3)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []
for epoch in range(3):
    model.train()
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    correct = 0
    with torch.no_grad():
        for inputs, targets in loader:
            pred = model(inputs).argmax(dim=1, keepdim=True)
            correct += pred.eq(targets.view_as(pred)).sum().item()
    losses.append(correct / len(data))
