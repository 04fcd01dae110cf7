"""nn.Transformer with causal and padding masks, label smoothing, the Noam schedule."""

import torch
import torch.nn as nn
from begin import begin

PAD = 0
source = torch.tensor([[1, 2, 3, 4], [5, 6, PAD, PAD]])
target = torch.tensor([[7, 4, 3, 2, 8], [7, 6, 5, 8, PAD]])


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.transformer = nn.Transformer(
            d_model=8,
            nhead=2,
            num_encoder_layers=1,
            num_decoder_layers=1,
            dim_feedforward=16,
            dropout=0.0,
            batch_first=True,
        )
        self.generator = nn.Linear(8, 9)

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        y = self.transformer(
            self.embed(src),
            self.embed(tgt),
            tgt_mask=mask,
            src_key_padding_mask=torch.zeros(src.shape).masked_fill(src == PAD, float("-inf")),
            tgt_key_padding_mask=torch.zeros(tgt.shape).masked_fill(tgt == PAD, float("-inf")),
        )
        return self.generator(y)


model = begin(torch, Translator())
optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda n: 8**-0.5 * min((n + 1) ** -0.5, (n + 1) * 40**-1.5)
)
criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
losses = []
for step in range(4):
    logits = model(source, target[:, :-1])
    loss = criterion(logits.reshape(-1, 9), target[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    losses.append(loss.item())
