"""Sets and point clouds: PointNet with transforms, farthest points, ball queries, Chamfer distances, deep sets, set transformers, Sinkhorn."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal


def square_distance(src, dst):
    B, N, _ = src.shape
    _, M, _ = dst.shape
    dist = -2 * torch.matmul(src, dst.permute(0, 2, 1))
    dist += torch.sum(src**2, -1).view(B, N, 1)
    dist += torch.sum(dst**2, -1).view(B, 1, M)
    return dist


def index_points(points, idx):
    device = points.device
    B = points.shape[0]
    view_shape = list(idx.shape)
    view_shape[1:] = [1] * (len(view_shape) - 1)
    repeat_shape = list(idx.shape)
    repeat_shape[0] = 1
    batch_indices = (
        torch.arange(B, dtype=torch.long).to(device).view(view_shape).repeat(repeat_shape)
    )
    return points[batch_indices, idx, :]


def farthest_point_sample(xyz, npoint):
    device = xyz.device
    B, N, _ = xyz.shape
    centroids = torch.zeros(B, npoint, dtype=torch.long).to(device)
    distance = torch.ones(B, N).to(device) * 1e10
    farthest = torch.zeros(B, dtype=torch.long).to(device)
    batch_indices = torch.arange(B, dtype=torch.long).to(device)
    for i in range(npoint):
        centroids[:, i] = farthest
        centroid = xyz[batch_indices, farthest, :].view(B, 1, 3)
        dist = torch.sum((xyz - centroid) ** 2, -1)
        mask = dist < distance
        distance[mask] = dist[mask]
        farthest = torch.max(distance, -1)[1]
    return centroids


def query_ball_point(radius, nsample, xyz, new_xyz):
    device = xyz.device
    B, N, _ = xyz.shape
    _, S, _ = new_xyz.shape
    group_idx = torch.arange(N, dtype=torch.long).to(device).view(1, 1, N).repeat([B, S, 1])
    sqrdists = square_distance(new_xyz, xyz)
    group_idx[sqrdists > radius**2] = N
    group_idx = group_idx.sort(dim=-1)[0][:, :, :nsample]
    group_first = group_idx[:, :, 0].view(B, S, 1).repeat([1, 1, nsample])
    mask = group_idx == N
    group_idx[mask] = group_first[mask]
    return group_idx


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.tnet = nn.Sequential(nn.Conv1d(3, 8, 1), nn.ReLU())
        self.fc = nn.Linear(8, 9)
        self.conv = nn.Conv2d(6, 8, 1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, xyz):
        batch = xyz.size(0)
        t = torch.max(self.tnet(xyz.transpose(2, 1)), 2, keepdim=True)[0].view(-1, 8)
        iden = torch.eye(3, device=xyz.device).flatten().view(1, 9).repeat(batch, 1)
        trans = (self.fc(t) + iden).view(-1, 3, 3)
        xyz = torch.bmm(xyz, trans)
        centers = index_points(xyz, farthest_point_sample(xyz.detach(), 4))
        idx = query_ball_point(1.5, 3, xyz.detach(), centers.detach())
        grouped = index_points(xyz, idx) - centers.unsqueeze(2)
        grouped = torch.cat([grouped, centers.unsqueeze(2).expand(-1, -1, 3, -1)], dim=-1).permute(
            0, 3, 2, 1
        )
        features = F.relu(self.norm(self.conv(grouped)))
        return F.log_softmax(self.head(features.amax(dim=(2, 3))), -1), trans


class ISAB(nn.Module):
    def __init__(self, dim, heads, points):
        super().__init__()
        self.inducing = nn.Parameter(torch.empty(1, points, dim))
        nn.init.xavier_uniform_(self.inducing)
        self.first = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.second = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        h, _ = self.first(self.inducing.repeat(x.size(0), 1, 1), x, x)
        return x + self.second(x, h, h, need_weights=False)[0]


cloud = torch.tensor(normal(2, 12, 3))
labels = torch.tensor([1, 3])
net = begin(torch, PointNet())
optimizer = torch.optim.Adam(
    net.parameters(), lr=5e-3, betas=(0.9, 0.999), eps=1e-08, weight_decay=1e-4
)
losses = []
for step in range(3):
    out, trans = net(cloud)
    eye = torch.eye(3)[None, :, :].to(trans.device)
    regular = torch.mean(torch.norm(torch.bmm(trans, trans.transpose(2, 1)) - eye, dim=(1, 2)))
    loss = F.nll_loss(out, labels) + 0.1 * regular
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

attend = begin(torch, nn.Sequential(nn.Linear(3, 8), ISAB(8, 2, 3), nn.Linear(8, 3)), 2)
optimizer = torch.optim.RAdam(attend.parameters(), lr=1e-2)
for step in range(3):
    moved = attend(cloud)
    cost = torch.cdist(moved, cloud.roll(1, 0))
    chamfer = cost.min(2).values.mean() + cost.min(1).values.mean()
    log_p = -cost / 0.5
    for _ in range(4):
        log_p = log_p - torch.logsumexp(log_p, -1, keepdim=True)
        log_p = log_p - torch.logsumexp(log_p, -2, keepdim=True)
    loss = chamfer + (log_p.exp() * cost).sum((1, 2)).mean() / 12
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses += [chamfer.item(), loss.item()]
