"""A causal transformer with a KV cache, adapted by LoRA under gradient checkpointing."""

import inspect
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from begin import begin, numbers
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class Config:
    block_size: int = 12
    vocab_size: int = 13
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 8
    dropout: float = 0.0


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r=2, alpha=4):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.zeros(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.lora_A.T @ self.lora_B.T) * self.scaling

    @torch.no_grad()
    def merge(self):
        self.base.weight += (self.lora_B @ self.lora_A) * self.scaling
        return self.base


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd)
        self.n_head, self.dropout = c.n_head, c.dropout

    def forward(self, x, past=None):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (z.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for z in (q, k, v))
        if past is not None:
            k, v = torch.cat([past[0], k], dim=-2), torch.cat([past[1], v], dim=-2)
        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=past is None
        )
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)), (k, v)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(c.n_embd), Attention(c)
        self.ln_2 = nn.LayerNorm(c.n_embd)
        self.mlp = nn.ModuleDict(
            dict(
                c_fc=nn.Linear(c.n_embd, 4 * c.n_embd),
                c_proj=nn.Linear(4 * c.n_embd, c.n_embd),
                act=nn.GELU(approximate="tanh"),
            )
        )

    def forward(self, x, past=None):
        a, kv = self.attn(self.ln_1(x), past)
        x = x + a
        m = self.mlp
        return x + m.c_proj(m.act(m.c_fc(self.ln_2(x)))), kv


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config, self.gradient_checkpointing = c, False
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(c.vocab_size, c.n_embd),
                wpe=nn.Embedding(c.block_size, c.n_embd),
                h=nn.ModuleList([Block(c) for _ in range(c.n_layer)]),
                ln_f=nn.LayerNorm(c.n_embd),
            )
        )
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx, targets=None, past=None):
        start = 0 if past is None else past[0][0].size(-2)
        pos = torch.arange(start, start + idx.size(1), dtype=torch.long, device=idx.device)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        cache = []
        for i, block in enumerate(self.transformer.h):
            if self.gradient_checkpointing and self.training:
                x, kv = checkpoint(block, x, use_reentrant=False)
            else:
                x, kv = block(x, None if past is None else past[i])
            cache.append(kv)
        x = self.transformer.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), cache
        logits = self.lm_head(x)
        return logits, F.cross_entropy(
            logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
        )

    @torch.no_grad()
    def generate(self, idx, n, top_k=None):
        past = None
        for _ in range(n):
            logits, past = self(idx if past is None else idx[:, -1:], past=past)
            logits = logits[:, -1, :] / 0.8
            if top_k is not None:
                v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                logits[logits < v[:, [-1]]] = -float("Inf")
            probs = F.softmax(logits, dim=-1)
            idx = torch.cat((idx, probs.argmax(-1, keepdim=True)), dim=1)
        return idx


torch.manual_seed(1337)
model = begin(torch, GPT(Config()))
for name, module in list(model.named_modules()):
    if isinstance(module, nn.Linear) and name.endswith("c_attn"):
        parent = model.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], LoRALinear(module))
for name, p in model.named_parameters():
    p.requires_grad = "lora_" in name
with torch.no_grad():
    for i, (n, p) in enumerate((n, p) for n, p in model.named_parameters() if "lora_A" in n):
        p.copy_(torch.tensor(numbers.normal(size=tuple(p.shape)).astype("float32")) * 0.3)
trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
fused_available = "fused" in inspect.signature(torch.optim.AdamW).parameters
optimizer = torch.optim.AdamW(
    filter(lambda p: p.requires_grad, model.parameters()),
    lr=2e-2,
    betas=(0.9, 0.95),
    **(dict(fused=False) if fused_available else {}),
)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda it: min(1.0, (it + 1) / 2))
model.gradient_checkpointing = True
losses = [float(trainable)]
for it in range(3):
    data = torch.tensor(numbers.integers(0, 13, (3, 9)))
    x, y = data[:, :-1].contiguous(), data[:, 1:].contiguous()
    model.train()
    logits, loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0)
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
model.eval()
out = model.generate(x[:1, :3], 4, top_k=5)
for block in model.transformer.h:
    block.attn.c_attn = block.attn.c_attn.merge()
again = model.generate(x[:1, :3], 4, top_k=5)
losses += [float(out.sum()), float((out == again).all()), model(x, y)[1].item()]
