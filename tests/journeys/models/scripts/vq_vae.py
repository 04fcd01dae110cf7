"""A VQ-VAE: a codebook that follows by moving averages, straight-through gradients, perplexity."""

import torch
from begin import begin, normal
from torch import nn
from torch.nn import functional as F


class VectorQuantizerEMA(nn.Module):
    def __init__(
        self, num_embeddings, embedding_dim, commitment_cost=0.25, decay=0.9, epsilon=1e-5
    ):
        super().__init__()
        self._embedding_dim, self._num_embeddings = embedding_dim, num_embeddings
        self._embedding = nn.Embedding(num_embeddings, embedding_dim)
        self._embedding.weight.data.normal_()
        self._embedding.weight.requires_grad = False
        self._commitment_cost = commitment_cost
        self.register_buffer("_ema_cluster_size", torch.zeros(num_embeddings))
        self._ema_w = nn.Parameter(torch.Tensor(num_embeddings, embedding_dim))
        self._ema_w.data.normal_()
        self._decay, self._epsilon = decay, epsilon

    def forward(self, inputs):
        inputs = inputs.permute(0, 2, 3, 1).contiguous()
        input_shape = inputs.shape
        flat_input = inputs.view(-1, self._embedding_dim)
        distances = (
            torch.sum(flat_input**2, dim=1, keepdim=True)
            + torch.sum(self._embedding.weight**2, dim=1)
            - 2 * torch.matmul(flat_input, self._embedding.weight.t())
        )
        encoding_indices = torch.argmin(distances, dim=1).unsqueeze(1)
        encodings = torch.zeros(
            encoding_indices.shape[0], self._num_embeddings, device=inputs.device
        )
        encodings.scatter_(1, encoding_indices, 1)
        quantized = torch.matmul(encodings, self._embedding.weight).view(input_shape)
        if self.training:
            self._ema_cluster_size = self._ema_cluster_size * self._decay + (
                1 - self._decay
            ) * torch.sum(encodings, 0)
            n = torch.sum(self._ema_cluster_size.data)
            self._ema_cluster_size = (
                (self._ema_cluster_size + self._epsilon)
                / (n + self._num_embeddings * self._epsilon)
                * n
            )
            dw = torch.matmul(encodings.t(), flat_input)
            self._ema_w = nn.Parameter(self._ema_w * self._decay + (1 - self._decay) * dw)
            self._embedding.weight = nn.Parameter(
                self._ema_w / self._ema_cluster_size.unsqueeze(1), requires_grad=False
            )
        e_latent_loss = F.mse_loss(quantized.detach(), inputs)
        loss = self._commitment_cost * e_latent_loss
        quantized = inputs + (quantized - inputs).detach()
        avg_probs = torch.mean(encodings, dim=0)
        perplexity = torch.exp(-torch.sum(avg_probs * torch.log(avg_probs + 1e-10)))
        return loss, quantized.permute(0, 3, 1, 2).contiguous(), perplexity, encodings


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self._block = nn.Sequential(
            nn.ReLU(False),
            nn.Conv2d(c, 4, 3, padding=1, bias=False),
            nn.ReLU(False),
            nn.Conv2d(4, c, 1, bias=False),
        )

    def forward(self, x):
        return x + self._block(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), Residual(8), nn.Conv2d(8, 3, 1))
        self.vq = VectorQuantizerEMA(6, 3)
        self.dec = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), Residual(8), nn.ConvTranspose2d(8, 1, 4, 2, 1)
        )

    def forward(self, x):
        loss, q, perplexity, _ = self.vq(self.enc(x))
        return loss, self.dec(q), perplexity


model = begin(torch, Model())
optimizer = torch.optim.Adam(
    [p for n, p in model.named_parameters() if p.requires_grad and "_ema_w" not in n],
    lr=1e-2,
    amsgrad=False,
)
model.train()
losses = []
for i in range(4):
    data = torch.tensor(normal(3, 1, 8, 8))
    optimizer.zero_grad()
    vq_loss, recon, perplexity = model(data)
    recon_error = F.mse_loss(recon, data) / 0.9
    loss = recon_error + vq_loss
    loss.backward()
    optimizer.step()
    losses += [loss.item(), perplexity.item()]
