"""In the manner of Opacus' examples/dcgan.py: the discriminator is private, and sees real and generated images."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesdp.opacus  # added


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, 4, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4, 8, 4, 2, 1, bias=False),
            nn.GroupNorm(4, 8),
            nn.LeakyReLU(0.2),
            nn.Conv2d(8, 1, 2, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, images):
        return self.main(images).view(-1, 1).squeeze(1)


def generator():
    return nn.Sequential(nn.ConvTranspose2d(4, 8, 4, 1, 0), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh())


def main():
    dataset = TensorDataset(torch.rand(300, 1, 8, 8) * 2 - 1)
    people, audit = bayesdp.opacus.split_audit(dataset, records=100, seed=0)  # added: the original has no test images
    dataloader = DataLoader(people, batch_size=50)
    netD, netG = Discriminator(), generator()
    criterion = nn.BCELoss()
    optimizerD = torch.optim.Adam(netD.parameters(), lr=0.01, betas=(0.5, 0.999))
    privacy_engine = PrivacyEngine()
    netD, optimizerD, dataloader = privacy_engine.make_private(
        module=netD, optimizer=optimizerD, data_loader=dataloader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    optimizerG = torch.optim.Adam(netG.parameters(), lr=0.01, betas=(0.5, 0.999))
    watched = bayesdp.opacus.watch(  # added
        netD,
        optimizerD,
        dataloader,
        ledger="run.ledger",
        audit=audit,
        loss=lambda model, batch: (
            -model(batch[0]).log() - (1 - model(netG(torch.randn(len(batch[0]), 4, 1, 1)).detach())).log()
        ),
    )
    for data in dataloader:
        optimizerD.zero_grad(set_to_none=True)
        real_data = data[0]
        batch_size = real_data.size(0)
        errD_real = criterion(netD(real_data), torch.full((batch_size,), 1.0))
        fake = netG(torch.randn(batch_size, 4, 1, 1))
        errD_fake = criterion(netD(fake.detach()), torch.full((batch_size,), 0.0))
        errD = errD_real + errD_fake
        errD.backward()
        optimizerD.step()
        optimizerD.zero_grad(set_to_none=True)
        optimizerG.zero_grad()
        errG = criterion(netD(fake), torch.full((batch_size,), 1.0))
        errG.backward()
        optimizerG.step()
    print(watched.statement())  # added
    return netD
