"""A GAN with spectral norm, hinge losses and an average of the generator's weights."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal
from torch.nn.utils.parametrizations import spectral_norm


class Generator(nn.Module):
    def __init__(self, nz=6, ngf=4, nc=1):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, nc, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z[:, :, None, None])


class Discriminator(nn.Module):
    def __init__(self, ndf=4):
        super().__init__()
        self.conv1 = spectral_norm(nn.Conv2d(1, ndf, 3, 2, 1))
        self.conv2 = spectral_norm(nn.Conv2d(ndf, ndf * 2, 3, 2, 1))
        self.fc = spectral_norm(nn.Linear(ndf * 2 * 2 * 2, 1))

    def forward(self, x):
        x = F.leaky_relu(self.conv1(x), 0.2, inplace=True)
        x = F.leaky_relu(self.conv2(x), 0.2, inplace=True)
        return self.fc(x.flatten(1)).squeeze(1)


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1 and hasattr(m, "weight") and not hasattr(m, "parametrizations"):
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


def accumulate(model1, model2, decay=0.9):
    par1, par2 = dict(model1.named_parameters()), dict(model2.named_parameters())
    for k in par1:
        par1[k].data.mul_(decay).add_(par2[k].data, alpha=1 - decay)


netG, netD = Generator(), Discriminator()
netG.apply(weights_init)
netD.apply(weights_init)
begin(torch, netG), begin(torch, netD, 1)
with torch.no_grad():
    for name, buf in netD.named_buffers():
        if name.endswith(("_u", "_v")):
            buf.copy_(F.normalize(torch.tensor(normal(*buf.shape)), dim=0))
g_ema = copy.deepcopy(netG).eval()
optD = torch.optim.Adam(netD.parameters(), lr=4e-3, betas=(0.0, 0.9))
optG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.0, 0.9))
losses = []
for step in range(3):
    real = torch.tensor(normal(4, 1, 8, 8))
    z = torch.tensor(normal(4, 6))
    netD.zero_grad(set_to_none=True)
    fake = netG(z)
    errD = F.relu(1.0 - netD(real)).mean() + F.relu(1.0 + netD(fake.detach())).mean()
    errD.backward()
    optD.step()
    for p in netD.parameters():
        p.requires_grad = False
    netG.zero_grad(set_to_none=True)
    errG = -netD(netG(z)).mean()
    errG.backward()
    optG.step()
    for p in netD.parameters():
        p.requires_grad = True
    accumulate(g_ema, netG)
    with torch.no_grad():
        shown = g_ema(z)
    losses += [errD.item(), errG.item(), shown.abs().mean().item()]
TOLERANCE = 5e-4
