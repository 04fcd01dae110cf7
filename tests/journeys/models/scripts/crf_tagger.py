"""A BiLSTM tagger with a CRF: packed sequences, the forward algorithm, Viterbi."""

import torch
import torch.nn as nn
from begin import begin, numbers
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class CRF(nn.Module):
    def __init__(self, num_tags):
        super().__init__()
        self.num_tags = num_tags
        self.start_transitions = nn.Parameter(torch.empty(num_tags))
        self.end_transitions = nn.Parameter(torch.empty(num_tags))
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.uniform_(self.start_transitions, -0.1, 0.1)
        nn.init.uniform_(self.end_transitions, -0.1, 0.1)
        nn.init.uniform_(self.transitions, -0.1, 0.1)

    def forward(self, emissions, tags, mask):
        return (self._score(emissions, tags, mask) - self._normalizer(emissions, mask)).mean()

    def _score(self, emissions, tags, mask):
        seq, batch = tags.shape
        maskf = mask.float()
        score = self.start_transitions[tags[0]]
        score += emissions[0, torch.arange(batch), tags[0]]
        for i in range(1, seq):
            score += self.transitions[tags[i - 1], tags[i]] * maskf[i]
            score += emissions[i, torch.arange(batch), tags[i]] * maskf[i]
        seq_ends = mask.long().sum(dim=0) - 1
        last_tags = tags[seq_ends, torch.arange(batch)]
        score += self.end_transitions[last_tags]
        return score

    def _normalizer(self, emissions, mask):
        score = self.start_transitions + emissions[0]
        for i in range(1, emissions.size(0)):
            next_score = score.unsqueeze(2) + self.transitions + emissions[i].unsqueeze(1)
            next_score = torch.logsumexp(next_score, dim=1)
            score = torch.where(mask[i].unsqueeze(1), next_score, score)
        return torch.logsumexp(score + self.end_transitions, dim=1)

    def decode(self, emissions, mask):
        score = self.start_transitions + emissions[0]
        history = []
        for i in range(1, emissions.size(0)):
            next_score, indices = (
                score.unsqueeze(2) + self.transitions + emissions[i].unsqueeze(1)
            ).max(dim=1)
            score = torch.where(mask[i].unsqueeze(1), next_score, score)
            history.append(indices)
        score += self.end_transitions
        seq_ends = mask.long().sum(dim=0) - 1
        best = []
        for idx in range(emissions.size(1)):
            _, best_last_tag = score[idx].max(dim=0)
            best_tags = [best_last_tag.item()]
            for hist in reversed(history[: seq_ends[idx]]):
                best_last_tag = hist[idx][best_tags[-1]]
                best_tags.append(best_last_tag.item())
            best_tags.reverse()
            best.append(best_tags)
        return best


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.word_embeds = nn.Embedding(12, 6, padding_idx=0)
        self.lstm = nn.LSTM(6, 5, num_layers=1, bidirectional=True)
        self.hidden2tag = nn.Linear(10, 4)
        self.crf = CRF(4)

    def feats(self, sent, lengths):
        packed = pack_padded_sequence(self.word_embeds(sent), lengths.cpu(), enforce_sorted=False)
        out, _ = self.lstm(packed)
        out, _ = pad_packed_sequence(out)
        return self.hidden2tag(out)


model = begin(torch, Tagger())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
losses = []
for step in range(2):
    lengths = torch.tensor([5, 3, 4])
    sent = torch.tensor(numbers.integers(1, 12, (5, 3)))
    tags = torch.tensor(numbers.integers(0, 4, (5, 3)))
    mask = torch.arange(5)[:, None] < lengths[None, :]
    sent = sent * mask
    model.zero_grad()
    feats = model.feats(sent, lengths)
    loss = -model.crf(feats, tags, mask)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with torch.no_grad():
    for path in model.crf.decode(model.feats(sent, lengths), mask):
        losses += [float(sum(t * 4**i for i, t in enumerate(path)))]
