"""A spatial transformer in front of a classifier, with mixup, cutmix, smoothed labels and a one-cycle schedule."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from begin import begin, normal, numbers


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 4, kernel_size=3)
        self.conv2_drop = nn.Dropout2d(0.0)
        self.fc1 = nn.Linear(4 * 5 * 5, 12)
        self.fc2 = nn.Linear(12, 4)
        self.localization = nn.Sequential(
            nn.Conv2d(1, 4, kernel_size=5),
            nn.MaxPool2d(2, stride=2),
            nn.ReLU(True),
        )
        self.fc_loc = nn.Sequential(nn.Linear(4 * 4 * 4, 8), nn.ReLU(True), nn.Linear(8, 3 * 2))
        self.fc_loc[2].weight.data.zero_()
        self.fc_loc[2].bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))

    def stn(self, x):
        xs = self.localization(x)
        xs = xs.view(-1, 4 * 4 * 4)
        theta = self.fc_loc(xs)
        theta = theta.view(-1, 2, 3)
        grid = F.affine_grid(theta, x.size(), align_corners=False)
        return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)

    def forward(self, x):
        x = self.stn(x)
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv1(x)), 2))
        x = x.view(-1, 4 * 5 * 5)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, p=0.0, training=self.training)
        return self.fc2(x)


def rand_bbox(size, lam, cx, cy):
    W, H = size[2], size[3]
    cut_rat = np.sqrt(1.0 - lam)
    cut_w, cut_h = int(W * cut_rat), int(H * cut_rat)
    return (
        np.clip(cx - cut_w // 2, 0, W),
        np.clip(cy - cut_h // 2, 0, H),
        np.clip(cx + cut_w // 2, 0, W),
        np.clip(cy + cut_h // 2, 0, H),
    )


def mixup_criterion(criterion, pred, y_a, y_b, lam):
    return lam * criterion(pred, y_a) + (1 - lam) * criterion(pred, y_b)


model = Net()
begin(torch, model)
with torch.no_grad():
    model.fc_loc[2].weight.mul_(0.1)
    model.fc_loc[2].bias.copy_(torch.tensor([1.0, 0.1, 0, -0.1, 0.9, 0.05]))
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
scheduler = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=4, pct_start=0.3)
losses = []
for step in range(3):
    data = torch.tensor(normal(6, 1, 12, 12))
    target = torch.tensor(numbers.integers(0, 4, 6))
    lam = float(numbers.beta(1.0, 1.0))
    index = torch.tensor(numbers.permutation(6))
    if step % 2 == 0:
        mixed = lam * data + (1 - lam) * data[index, :]
    else:
        mixed = data.clone()
        x1, y1, x2, y2 = rand_bbox(data.size(), lam, 5, 7)
        mixed[:, :, x1:x2, y1:y2] = data[index, :, x1:x2, y1:y2]
        lam = 1 - ((x2 - x1) * (y2 - y1) / (data.size()[-1] * data.size()[-2]))
    optimizer.zero_grad()
    output = model(mixed)
    loss = mixup_criterion(criterion, output, target, target[index], lam)
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), clip_value=1.0)
    optimizer.step()
    scheduler.step()
    losses += [loss.item(), optimizer.param_groups[0]["lr"], scheduler.get_last_lr()[0]]
model.eval()
with torch.no_grad():
    pred = model(data).max(1, keepdim=True)[1]
    losses.append(float(pred.eq(target.view_as(pred)).sum().item()))
    losses.append(model.stn(data).abs().mean().item())
TOLERANCE = 3e-4
