"""An energy-based model: Langevin samples by gradients of inputs, a replay buffer, noise schedules, denoising score matching."""

import random

import torch
import torch.nn as nn
from begin import begin, normal, numbers


class Swish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class CNNModel(nn.Module):
    def __init__(self, hidden_features=4, out_dim=1):
        super().__init__()
        self.cnn_layers = nn.Sequential(
            nn.Conv2d(1, hidden_features, kernel_size=5, stride=2, padding=4),
            Swish(),
            nn.Conv2d(hidden_features, hidden_features * 2, kernel_size=3, stride=2, padding=1),
            Swish(),
            nn.Flatten(),
            nn.Linear(hidden_features * 2 * 9, out_dim),
        )

    def forward(self, x):
        return self.cnn_layers(x).squeeze(dim=-1)


class Sampler:
    def __init__(self, model, img_shape, sample_size, max_len=16):
        self.model, self.img_shape, self.sample_size, self.max_len = (
            model,
            img_shape,
            sample_size,
            max_len,
        )
        self.examples = [
            (torch.from_numpy(numbers.random((1, *img_shape)).astype("float32")) * 2 - 1).cpu()
            for _ in range(sample_size)
        ]

    def sample_new_exmps(self, steps=3, step_size=10):
        n_new = 1
        rand_imgs = (
            torch.from_numpy(numbers.random((n_new, *self.img_shape)).astype("float32")) * 2 - 1
        )
        old_imgs = torch.cat(
            random.Random(3).choices(self.examples, k=self.sample_size - n_new), dim=0
        )
        inp_imgs = torch.cat([rand_imgs.cpu(), old_imgs], dim=0).detach()
        inp_imgs = inp_imgs.to(next(self.model.parameters()).device)
        inp_imgs = self.generate_samples(self.model, inp_imgs, steps=steps, step_size=step_size)
        self.examples = list(inp_imgs.cpu().chunk(self.sample_size, dim=0)) + self.examples
        self.examples = self.examples[: self.max_len]
        return inp_imgs

    @staticmethod
    def generate_samples(model, inp_imgs, steps=3, step_size=10):
        is_training = model.training
        model.eval()
        for p in model.parameters():
            p.requires_grad = False
        inp_imgs.requires_grad = True
        had_gradients_enabled = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        for _ in range(steps):
            noise = torch.from_numpy(normal(*inp_imgs.shape)) * 0.005
            inp_imgs.data.add_(noise.data)
            inp_imgs.data.clamp_(min=-1.0, max=1.0)
            out_imgs = -model(inp_imgs)
            out_imgs.sum().backward()
            inp_imgs.grad.data.clamp_(-0.03, 0.03)
            inp_imgs.data.add_(-step_size * inp_imgs.grad.data)
            inp_imgs.grad.detach_()
            inp_imgs.grad.zero_()
            inp_imgs.data.clamp_(min=-1.0, max=1.0)
        for p in model.parameters():
            p.requires_grad = True
        model.train(is_training)
        torch.set_grad_enabled(had_gradients_enabled)
        return inp_imgs.detach()


cnn = begin(torch, CNNModel())
sampler = Sampler(cnn, (1, 6, 6), sample_size=4)
optimizer = torch.optim.Adam(cnn.parameters(), lr=1e-3, betas=(0.0, 0.999))
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.97)
losses = []
for step in range(3):
    real_imgs = torch.tanh(torch.tensor(normal(4, 1, 6, 6)))
    real_imgs.add_(torch.tensor(normal(4, 1, 6, 6)) * 0.005).clamp_(min=-1.0, max=1.0)
    fake_imgs = sampler.sample_new_exmps()
    inp_imgs = torch.cat([real_imgs, fake_imgs], dim=0)
    real_out, fake_out = cnn(inp_imgs).chunk(2, dim=0)
    reg_loss = 0.1 * (real_out**2 + fake_out**2).mean()
    cdiv_loss = fake_out.mean() - real_out.mean()
    loss = reg_loss + cdiv_loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(cnn.parameters(), 0.1)
    optimizer.step()
    scheduler.step()
    losses += [reg_loss.item(), fake_imgs.mean().item(), real_out.mean().item()]

# a score network by sliced and denoising matching
score = begin(torch, nn.Sequential(nn.Linear(2, 8), nn.Softplus(), nn.Linear(8, 2)), 1)
optimizer = torch.optim.RMSprop(score.parameters(), lr=1e-2, centered=True)
for step in range(2):
    x = torch.tensor(normal(8, 2)).requires_grad_(True)
    v = torch.tensor(normal(8, 2))
    s = score(x)
    (gv,) = torch.autograd.grad((s * v).sum(), x, create_graph=True)
    sliced = (v * gv).sum(-1) + 0.5 * (s * v).sum(-1).square()
    sigma = torch.tensor([1.0, 0.5, 0.1]).repeat_interleave(3)[:8, None]
    noisy = x.detach() + sigma * v
    dsm = 0.5 * ((score(noisy) * sigma + v) ** 2).sum(dim=-1)
    loss = sliced.mean() + dsm.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
TOLERANCE = 3e-4
