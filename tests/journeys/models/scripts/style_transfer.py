"""An image is what learns: features of a frozen network, Gram matrices, total variation, LBFGS."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from begin import begin, normal


class ContentLoss(nn.Module):
    def __init__(self, target):
        super(ContentLoss, self).__init__()
        self.target = target.detach()

    def forward(self, input):
        self.loss = F.mse_loss(input, self.target)
        return input


def gram_matrix(input):
    a, b, c, d = input.size()
    features = input.view(a * b, c * d)
    G = torch.mm(features, features.t())
    return G.div(a * b * c * d)


class StyleLoss(nn.Module):
    def __init__(self, target_feature):
        super(StyleLoss, self).__init__()
        self.target = gram_matrix(target_feature).detach()

    def forward(self, input):
        G = gram_matrix(input)
        self.loss = F.mse_loss(G, self.target)
        return input


class Normalization(nn.Module):
    def __init__(self, mean, std):
        super(Normalization, self).__init__()
        self.mean = mean.clone().detach().view(-1, 1, 1)
        self.std = std.clone().detach().view(-1, 1, 1)

    def forward(self, img):
        return (img - self.mean) / self.std


cnn = begin(
    torch,
    nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 6, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=2, stride=2),
        nn.Conv2d(6, 8, 3, padding=1),
    ),
).eval()
mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
content_img = torch.sigmoid(torch.tensor(normal(1, 3, 8, 8)))
style_img = torch.sigmoid(torch.tensor(normal(1, 3, 8, 8)))

content_losses, style_losses = [], []
model = nn.Sequential(Normalization(mean, std))
i = 0
for layer in cnn.children():
    if isinstance(layer, nn.Conv2d):
        i += 1
        name = f"conv_{i}"
    elif isinstance(layer, nn.ReLU):
        name = f"relu_{i}"
        layer = nn.ReLU(inplace=False)
    elif isinstance(layer, nn.MaxPool2d):
        name = f"pool_{i}"
    else:
        raise TypeError(f"Unrecognized layer: {layer.__class__.__name__}")
    model.add_module(name, layer)
    if name in ("conv_2",):
        content_loss = ContentLoss(model(content_img).detach())
        model.add_module(f"content_loss_{i}", content_loss)
        content_losses.append(content_loss)
    if name in ("conv_1", "conv_2", "conv_3"):
        style_loss = StyleLoss(model(style_img).detach())
        model.add_module(f"style_loss_{i}", style_loss)
        style_losses.append(style_loss)
for i in range(len(model) - 1, -1, -1):
    if isinstance(model[i], (ContentLoss, StyleLoss)):
        break
model = model[: (i + 1)]

input_img = content_img.clone()
input_img.requires_grad_(True)
model.eval()
model.requires_grad_(False)
optimizer = optim.LBFGS([input_img], max_iter=3)
losses = []
run = [0]
while run[0] <= 6:

    def closure():
        with torch.no_grad():
            input_img.clamp_(0, 1)
        optimizer.zero_grad()
        model(input_img)
        style_score, content_score = 0, 0
        for sl in style_losses:
            style_score += sl.loss
        for cl in content_losses:
            content_score += cl.loss
        tv = (input_img[..., 1:] - input_img[..., :-1]).abs().mean()
        tv += (input_img[..., 1:, :] - input_img[..., :-1, :]).abs().mean()
        loss = style_score * 1e2 + content_score + 1e-2 * tv
        loss.backward()
        run[0] += 1
        losses.append(loss.item())
        return style_score + content_score

    optimizer.step(closure)
with torch.no_grad():
    input_img.clamp_(0, 1)
losses.append(input_img.mean().item())
TOLERANCE = 1e-3
