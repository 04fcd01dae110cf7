"""A model in the manner of transformers: config, ModelOutput, masks, tied weights, a Trainer loop."""

import logging
import math
from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn as nn
from begin import begin, numbers
from torch.nn import CrossEntropyLoss
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler


class ModelOutput(OrderedDict):
    def __post_init__(self):
        for f in fields(self):
            v = getattr(self, f.name)
            if v is not None:
                self[f.name] = v

    def __getitem__(self, k):
        return dict(self.items())[k] if isinstance(k, str) else tuple(self.values())[k]


@dataclass
class CausalLMOutput(ModelOutput):
    loss: torch.FloatTensor | None = None
    logits: torch.FloatTensor = None
    hidden_states: tuple[torch.FloatTensor] | None = None


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    @torch.no_grad()
    def forward(self, x, position_ids):
        inv_freq_expanded = (
            self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1)
        )
        position_ids_expanded = position_ids[:, None, :].float()
        device_type = x.device.type if isinstance(x.device.type, str) else "cpu"
        with torch.autocast(device_type=device_type, enabled=False):
            freqs = (inv_freq_expanded.float() @ position_ids_expanded.float()).transpose(1, 2)
            emb = torch.cat((freqs, freqs), dim=-1)
            cos, sin = emb.cos(), emb.sin()
        return cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def repeat_kv(hidden_states: torch.Tensor, n_rep: int) -> torch.Tensor:
    batch, heads, slen, head_dim = hidden_states.shape
    if n_rep == 1:
        return hidden_states
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, heads, n_rep, slen, head_dim)
    return hidden_states.reshape(batch, heads * n_rep, slen, head_dim)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.num_heads, self.kv, self.head_dim = 4, 2, config["hidden"] // 4
        self.q_proj = nn.Linear(config["hidden"], 4 * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config["hidden"], 2 * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config["hidden"], 2 * self.head_dim, bias=False)
        self.o_proj = nn.Linear(4 * self.head_dim, config["hidden"], bias=False)

    def forward(self, x, mask, position_embeddings):
        bsz, q_len, _ = x.size()
        q = self.q_proj(x).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(bsz, q_len, self.kv, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(bsz, q_len, self.kv, self.head_dim).transpose(1, 2)
        cos, sin = (t.unsqueeze(1) for t in position_embeddings)
        q, k = (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)
        k, v = repeat_kv(k, 2), repeat_kv(v, 2)
        w = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.head_dim)
        if mask is not None:
            w = w + mask[:, :, :, : k.shape[-2]]
        w = nn.functional.softmax(w, dim=-1, dtype=torch.float32).to(q.dtype)
        w = nn.functional.dropout(w, p=0.0, training=self.training)
        out = torch.matmul(w, v)
        if out.size() != (bsz, self.num_heads, q_len, self.head_dim):
            raise ValueError(f"`attn_output` is of size {out.size()}")
        return self.o_proj(out.transpose(1, 2).contiguous().reshape(bsz, q_len, -1))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn, h = Attention(config), config["hidden"]
        self.gate_proj, self.up_proj = (
            nn.Linear(h, 2 * h, bias=False),
            nn.Linear(h, 2 * h, bias=False),
        )
        self.down_proj, self.act_fn = nn.Linear(2 * h, h, bias=False), nn.SiLU()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(h), RMSNorm(h)

    def forward(self, x, **kwargs):
        x = x + self.self_attn(self.input_layernorm(x), **kwargs)
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(self.act_fn(self.gate_proj(y)) * self.up_proj(y))


class CausalLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config["vocab"], config["hidden"], padding_idx=0)
        self.layers = nn.ModuleList([Layer(config) for _ in range(2)])
        self.norm, self.rotary_emb = (
            RMSNorm(config["hidden"]),
            RotaryEmbedding(config["hidden"] // 4),
        )
        self.lm_head = nn.Linear(config["hidden"], config["vocab"], bias=False)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(mean=0.0, std=0.02)
            if module.bias is not None:
                module.bias.data.zero_()
        elif isinstance(module, nn.Embedding):
            module.weight.data.normal_(mean=0.0, std=0.02)
            if module.padding_idx is not None:
                module.weight.data[module.padding_idx].zero_()

    @property
    def device(self):
        return next(self.parameters()).device

    def num_parameters(self, only_trainable=False):
        return sum(p.numel() for p in self.parameters() if p.requires_grad or not only_trainable)

    def _causal_mask(self, attention_mask, x):
        dtype, device = x.dtype, x.device
        min_dtype, n = torch.finfo(dtype).min, x.shape[1]
        causal = torch.full((n, n), fill_value=min_dtype, dtype=dtype, device=device)
        causal = torch.triu(causal, diagonal=1)
        causal = causal[None, None, :, :].expand(x.shape[0], 1, -1, -1).clone()
        padding = causal + attention_mask[:, None, None, :]
        padding = padding == 0
        causal = causal.masked_fill(padding, min_dtype)
        return causal.mul(~torch.all(causal == min_dtype, dim=-1, keepdim=True))

    def forward(
        self, input_ids, attention_mask=None, labels=None, **kwargs
    ) -> tuple | CausalLMOutput:
        x = self.embed_tokens(input_ids)
        position_ids = attention_mask.long().cumsum(-1) - 1
        position_ids.masked_fill_(attention_mask == 0, 1)
        mask = self._causal_mask(attention_mask, x)
        emb, hidden = self.rotary_emb(x, position_ids), ()
        for layer in self.layers:
            hidden += (x,)
            x = layer(x, mask=mask, position_embeddings=emb)
        logits = self.lm_head(self.norm(x)).float()
        loss = None
        if labels is not None:
            shift_logits = logits[..., :-1, :].contiguous()
            shift_labels = labels[..., 1:].contiguous()
            loss = CrossEntropyLoss()(
                shift_logits.view(-1, self.config["vocab"]), shift_labels.view(-1).to(logits.device)
            )
        return CausalLMOutput(loss=loss, logits=logits, hidden_states=hidden)


def get_linear_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps, last_epoch=-1):
    def lr_lambda(current_step: int):
        if current_step < num_warmup_steps:
            return float(current_step) / float(max(1, num_warmup_steps))
        return max(
            0.0,
            float(num_training_steps - current_step)
            / float(max(1, num_training_steps - num_warmup_steps)),
        )

    return LambdaLR(optimizer, lr_lambda, last_epoch)


class Texts(Dataset):
    def __init__(self):
        self.rows = [numbers.integers(1, 16, n) for n in (7, 5, 8, 4)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i].tolist()}


def collate(features: list[dict[str, Any]]):
    length = max(len(f["input_ids"]) for f in features)
    ids = torch.tensor(
        [f["input_ids"] + [0] * (length - len(f["input_ids"])) for f in features], dtype=torch.long
    )
    mask = ids.ne(0).long()
    labels = ids.clone()
    labels[labels == 0] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


logger = logging.getLogger(__name__)
model = begin(torch, CausalLM({"vocab": 16, "hidden": 16}))
with torch.no_grad():
    for name, p in model.named_parameters():
        if "layernorm" in name or name == "norm.weight":
            p.fill_(1.0)
no_decay = ["bias", "layernorm.weight"]
optimizer = torch.optim.AdamW(
    [
        {
            "params": [
                p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)
            ],
            "weight_decay": 0.1,
        },
        {
            "params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)],
            "weight_decay": 0.0,
        },
    ],
    lr=5e-3,
)
scheduler = get_linear_schedule_with_warmup(optimizer, 1, 4)
data = Texts()
loader = DataLoader(
    data, batch_sampler=BatchSampler(SequentialSampler(data), 2, False), collate_fn=collate
)
losses, accumulation = [float(model.num_parameters())], 2
model.train()
tr_loss = torch.tensor(0.0).to(model.device)
for epoch in range(2):
    for step, batch in enumerate(loader):
        batch = {k: v.to(model.device) for k, v in batch.items()}
        outputs = model(**batch)
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
        loss = loss / accumulation
        loss.backward()
        tr_loss_step = loss.detach()
        if torch.isnan(tr_loss_step) or torch.isinf(tr_loss_step):
            tr_loss += tr_loss / (1 + step)
        else:
            tr_loss += tr_loss_step
        if (step + 1) % accumulation == 0:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            model.zero_grad()
        losses += [
            outputs.loss.item(),
            float(norm) if step % 2 else 0.0,
            scheduler.get_last_lr()[0],
        ]
    tr_loss -= tr_loss * 0
losses.append(tr_loss.item())
model.eval()
with torch.no_grad():
    ppl = torch.exp(model(**collate([data[2]])).loss)
losses.append(ppl.item())
TOLERANCE = 2e-4
