"""A Kolmogorov-Arnold network: B-splines on a grid in a buffer, coefficients by least squares, entropy of activations."""

import math

import torch
import torch.nn.functional as F
from begin import begin, normal


class KANLinear(torch.nn.Module):
    def __init__(
        self,
        in_features,
        out_features,
        grid_size=4,
        spline_order=3,
        grid_range=(-1, 1),
        base_activation=torch.nn.SiLU,
    ):
        super(KANLinear, self).__init__()
        self.in_features, self.out_features = in_features, out_features
        self.grid_size, self.spline_order = grid_size, spline_order
        h = (grid_range[1] - grid_range[0]) / grid_size
        grid = (
            (torch.arange(-spline_order, grid_size + spline_order + 1) * h + grid_range[0])
            .expand(in_features, -1)
            .contiguous()
        )
        self.register_buffer("grid", grid)
        self.base_weight = torch.nn.Parameter(torch.Tensor(out_features, in_features))
        self.spline_weight = torch.nn.Parameter(
            torch.Tensor(out_features, in_features, grid_size + spline_order)
        )
        self.spline_scaler = torch.nn.Parameter(torch.Tensor(out_features, in_features))
        self.base_activation = base_activation()
        self.reset_parameters()

    def reset_parameters(self):
        torch.nn.init.kaiming_uniform_(self.base_weight, a=math.sqrt(5))
        with torch.no_grad():
            noise = (
                (torch.rand(self.grid_size + 1, self.in_features, self.out_features) - 1 / 2)
                * 0.1
                / self.grid_size
            )
            self.spline_weight.data.copy_(
                self.curve2coeff(self.grid.T[self.spline_order : -self.spline_order], noise)
            )
            torch.nn.init.kaiming_uniform_(self.spline_scaler, a=math.sqrt(5))

    def b_splines(self, x):
        assert x.size(1) == self.in_features
        grid = self.grid
        x = x.unsqueeze(-1)
        bases = ((x >= grid[:, :-1]) & (x < grid[:, 1:])).to(x.dtype)
        for k in range(1, self.spline_order + 1):
            bases = (
                (x - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)]) * bases[:, :, :-1]
            ) + ((grid[:, k + 1 :] - x) / (grid[:, k + 1 :] - grid[:, 1:(-k)]) * bases[:, :, 1:])
        assert bases.size() == (x.size(0), self.in_features, self.grid_size + self.spline_order)
        return bases.contiguous()

    def curve2coeff(self, x, y):
        A = self.b_splines(x).transpose(0, 1)
        B = y.transpose(0, 1)
        solution = torch.linalg.lstsq(A, B).solution
        return solution.permute(2, 0, 1).contiguous()

    @property
    def scaled_spline_weight(self):
        return self.spline_weight * self.spline_scaler.unsqueeze(-1)

    def forward(self, x):
        original_shape = x.shape
        x = x.reshape(-1, self.in_features)
        base_output = F.linear(self.base_activation(x), self.base_weight)
        spline_output = F.linear(
            self.b_splines(x).view(x.size(0), -1),
            self.scaled_spline_weight.view(self.out_features, -1),
        )
        return (base_output + spline_output).reshape(*original_shape[:-1], self.out_features)

    @torch.no_grad()
    def update_grid(self, x, margin=0.01):
        splines = self.b_splines(x).permute(1, 0, 2)
        orig_coeff = self.scaled_spline_weight.permute(1, 2, 0)
        unreduced = torch.bmm(splines, orig_coeff).permute(1, 0, 2)
        x_sorted = torch.sort(x, dim=0)[0]
        batch = x.size(0)
        adaptive = x_sorted[
            torch.linspace(0, batch - 1, self.grid_size + 1, dtype=torch.int64, device=x.device)
        ]
        step = (x_sorted[-1] - x_sorted[0] + 2 * margin) / self.grid_size
        uniform = (
            torch.arange(self.grid_size + 1, dtype=torch.float32, device=x.device).unsqueeze(1)
            * step
            + x_sorted[0]
            - margin
        )
        grid = 0.5 * uniform + 0.5 * adaptive
        grid = torch.concatenate(
            [
                grid[:1]
                - step * torch.arange(self.spline_order, 0, -1, device=x.device).unsqueeze(1),
                grid,
                grid[-1:]
                + step * torch.arange(1, self.spline_order + 1, device=x.device).unsqueeze(1),
            ],
            dim=0,
        )
        self.grid.copy_(grid.T)
        return unreduced.abs().mean()

    def regularization_loss(self, a=1.0, e=1.0):
        l1 = self.spline_weight.abs().mean(-1)
        s = l1.sum()
        p = l1 / s
        return a * s + e * -torch.sum(p * p.log())


model = begin(torch, torch.nn.Sequential(KANLinear(2, 4), KANLinear(4, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
x = torch.tensor(normal(16, 2)).tanh()
y = torch.exp(torch.sin(math.pi * x[:, [0]]) + x[:, [1]] ** 2)
curve = model[0].curve2coeff(x, torch.stack([x, x * x, x.sin()], -1).expand(-1, -1, 3))
losses = [curve.norm().item()]
for step in range(3):
    optimizer.zero_grad()
    output = model(x)
    loss = F.mse_loss(output, y) + 1e-3 * sum(m.regularization_loss() for m in model)
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
losses.append(model[0].update_grid(x).item())
losses.append(F.l1_loss(model(x), y).item())
