"""Windows that shift: rolled partitions, a table of relative places, masks, merged patches, stochastic depth of 0, layer-wise rates."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal, numbers


def drop_path(x, drop_prob: float = 0.0, training: bool = False):
    if drop_prob == 0.0 or not training:
        return x
    keep_prob = 1 - drop_prob
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    random_tensor = x.new_empty(shape).bernoulli_(keep_prob)
    return x * random_tensor.div_(keep_prob)


class DropPath(nn.Module):
    def __init__(self, drop_prob=None):
        super(DropPath, self).__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        return drop_path(x, self.drop_prob, self.training)


def window_partition(x, window_size):
    B, H, W, C = x.shape
    x = x.view(B, H // window_size, window_size, W // window_size, window_size, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, window_size, window_size, C)


def window_reverse(windows, window_size, H, W):
    B = int(windows.shape[0] / (H * W / window_size / window_size))
    x = windows.view(B, H // window_size, W // window_size, window_size, window_size, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(B, H, W, -1)


class WindowAttention(nn.Module):
    def __init__(self, dim, window_size, num_heads, qkv_bias=True):
        super().__init__()
        self.window_size, self.num_heads = window_size, num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.relative_position_bias_table = nn.Parameter(
            torch.zeros((2 * window_size[0] - 1) * (2 * window_size[1] - 1), num_heads)
        )
        coords_h, coords_w = torch.arange(window_size[0]), torch.arange(window_size[1])
        coords = torch.stack(torch.meshgrid([coords_h, coords_w], indexing="ij"))
        coords_flatten = torch.flatten(coords, 1)
        relative_coords = coords_flatten[:, :, None] - coords_flatten[:, None, :]
        relative_coords = relative_coords.permute(1, 2, 0).contiguous()
        relative_coords[:, :, 0] += window_size[0] - 1
        relative_coords[:, :, 1] += window_size[1] - 1
        relative_coords[:, :, 0] *= 2 * window_size[1] - 1
        self.register_buffer("relative_position_index", relative_coords.sum(-1))
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x, mask=None):
        B_, N, C = x.shape
        qkv = (
            self.qkv(x)
            .reshape(B_, N, 3, self.num_heads, C // self.num_heads)
            .permute(2, 0, 3, 1, 4)
        )
        q, k, v = qkv[0], qkv[1], qkv[2]
        q = q * self.scale
        attn = q @ k.transpose(-2, -1)
        n = self.window_size[0] * self.window_size[1]
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(
            n, n, -1
        )
        attn = attn + bias.permute(2, 0, 1).contiguous().unsqueeze(0)
        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(B_ // nW, nW, self.num_heads, N, N) + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.num_heads, N, N)
        x = (self.softmax(attn) @ v).transpose(1, 2).reshape(B_, N, C)
        return self.proj(x)


class Block(nn.Module):
    def __init__(self, dim, resolution, num_heads, window_size=2, shift_size=0):
        super().__init__()
        self.resolution, self.window_size, self.shift_size = resolution, window_size, shift_size
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, (window_size, window_size), num_heads)
        self.drop_path = DropPath(0.0)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        attn_mask = None
        if shift_size > 0:
            H, W = resolution
            img_mask = torch.zeros((1, H, W, 1))
            slices = (
                slice(0, -window_size),
                slice(-window_size, -shift_size),
                slice(-shift_size, None),
            )
            cnt = 0
            for h in slices:
                for w in slices:
                    img_mask[:, h, w, :] = cnt
                    cnt += 1
            mask_windows = window_partition(img_mask, window_size).view(
                -1, window_size * window_size
            )
            attn_mask = mask_windows.unsqueeze(1) - mask_windows.unsqueeze(2)
            attn_mask = attn_mask.masked_fill(attn_mask != 0, (-100.0)).masked_fill(
                attn_mask == 0, 0.0
            )
        self.register_buffer("attn_mask", attn_mask)

    def forward(self, x):
        H, W = self.resolution
        B, _L, C = x.shape
        shortcut = x
        x = self.norm1(x).view(B, H, W, C)
        if self.shift_size > 0:
            x = torch.roll(x, shifts=(-self.shift_size, -self.shift_size), dims=(1, 2))
        w = window_partition(x, self.window_size).view(-1, self.window_size * self.window_size, C)
        w = self.attn(w, mask=self.attn_mask).view(-1, self.window_size, self.window_size, C)
        x = window_reverse(w, self.window_size, H, W)
        if self.shift_size > 0:
            x = torch.roll(x, shifts=(self.shift_size, self.shift_size), dims=(1, 2))
        x = shortcut + self.drop_path(x.view(B, H * W, C))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class PatchMerging(nn.Module):
    def __init__(self, resolution, dim):
        super().__init__()
        self.resolution = resolution
        self.reduction, self.norm = nn.Linear(4 * dim, 2 * dim, bias=False), nn.LayerNorm(4 * dim)

    def forward(self, x):
        H, W = self.resolution
        x = x.view(x.shape[0], H, W, -1)
        x = torch.cat([x[:, i::2, j::2, :] for j in (0, 1) for i in (0, 1)], -1)
        return self.reduction(self.norm(x.flatten(1, 2)))


class Swin(nn.Module):
    def __init__(self, dim=8, classes=4):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, kernel_size=2, stride=2)
        self.blocks = nn.ModuleList(
            [Block(dim, (4, 4), 2, 2, 0 if i % 2 == 0 else 1) for i in range(2)]
        )
        self.merge = PatchMerging((4, 4), dim)
        self.norm, self.avgpool = nn.LayerNorm(2 * dim), nn.AdaptiveAvgPool1d(1)
        self.head = nn.Linear(2 * dim, classes)

    @torch.jit.ignore
    def no_weight_decay_keywords(self):
        return {"relative_position_bias_table"}

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        for blk in self.blocks:
            x = blk(x)
        x = self.norm(self.merge(x))
        return self.head(torch.flatten(self.avgpool(x.transpose(1, 2)), 1))


def param_groups(model, lr, decay=0.7):
    groups = {}
    skip = model.no_weight_decay_keywords()
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        no_decay = p.ndim <= 1 or any(k in name for k in skip)
        layer = (
            0
            if name.startswith("patch")
            else int(name.split(".")[1]) + 1
            if name.startswith("blocks")
            else 3
        )
        key = f"layer_{layer}_{'no_decay' if no_decay else 'decay'}"
        group = groups.setdefault(
            key,
            {
                "params": [],
                "lr": lr * decay ** (3 - layer),
                "weight_decay": 0.0 if no_decay else 0.05,
            },
        )
        group["params"].append(p)
    return list(groups.values())


model = begin(torch, Swin())
optimizer = torch.optim.AdamW(param_groups(model, 1e-2), betas=(0.9, 0.999), eps=1e-8)
warm = lambda e: (e + 1) / 2 if e < 2 else 0.5 * (1 + math.cos(math.pi * (e - 2) / 4))
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm)
losses = []
for step in range(3):
    x, y = torch.tensor(normal(3, 3, 8, 8)), torch.tensor(numbers.integers(0, 4, 3))
    soft = F.one_hot(y, 4).float() * 0.9 + 0.025
    loss = torch.sum(-soft * F.log_softmax(model(x), dim=-1), dim=-1).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    scheduler.step()
    losses += [loss.item(), norm.item(), sum(scheduler.get_last_lr())]
TOLERANCE = 3e-4
