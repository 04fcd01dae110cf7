"""Speech: a spectrogram-like input, convolutions, a GRU in both directions, CTC, OneCycleLR."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from begin import begin, normal, numbers


class CNNLayerNorm(nn.Module):
    def __init__(self, n_feats):
        super().__init__()
        self.layer_norm = nn.LayerNorm(n_feats)

    def forward(self, x):
        x = x.transpose(2, 3).contiguous()
        x = self.layer_norm(x)
        return x.transpose(2, 3).contiguous()


class SpeechModel(nn.Module):
    def __init__(self, n_class=5, n_feats=6, rnn=8):
        super().__init__()
        self.cnn = nn.Conv2d(1, 2, 3, stride=1, padding=3 // 2)
        self.norm = CNNLayerNorm(n_feats)
        self.fc = nn.Linear(2 * n_feats, rnn)
        self.gru = nn.GRU(rnn, rnn, num_layers=1, batch_first=True, bidirectional=True)
        self.classifier = nn.Sequential(
            nn.Linear(rnn * 2, rnn), nn.GELU(), nn.Dropout(0.0), nn.Linear(rnn, n_class)
        )

    def forward(self, x):
        x = F.gelu(self.norm(self.cnn(x)))
        sizes = x.size()
        x = x.view(sizes[0], sizes[1] * sizes[2], sizes[3])
        x = self.fc(x.transpose(1, 2))
        x, _ = self.gru(x)
        return self.classifier(x)


model = begin(torch, SpeechModel())
criterion = nn.CTCLoss(blank=4, zero_infinity=True)
optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=5e-3, steps_per_epoch=2, epochs=2, anneal_strategy="linear"
)
losses = []
for epoch in range(2):
    for batch in range(2):
        spectrograms = torch.tensor(normal(3, 1, 6, 12))
        labels = nn.utils.rnn.pad_sequence(
            [torch.Tensor(numbers.integers(0, 4, n)) for n in (3, 4, 2)], batch_first=True
        )
        optimizer.zero_grad()
        output = model(spectrograms)
        output = F.log_softmax(output, dim=2).transpose(0, 1)
        loss = criterion(output, labels.to(torch.int64), [12, 11, 10], [3, 4, 2])
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses += [loss.item(), scheduler.get_last_lr()[0]]
    arg_maxes = torch.argmax(output.transpose(0, 1), dim=2)
    for row in arg_maxes:
        decoded = torch.unique_consecutive(row, dim=-1)
        decoded = [int(i) for i in decoded if i != 4]
        losses.append(float(len(decoded)))
