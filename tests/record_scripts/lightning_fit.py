import sys
import time

import pytorch_lightning as pl
import torch
from small import Net, Numbers, tell
from torch import nn
from torch.utils.data import DataLoader

devices, manual = int(sys.argv[1]), "manual" in sys.argv


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net(10)
        self.automatic_optimization = not manual
        self.updates = 0

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        if manual:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def on_train_batch_end(self, *_):
        self.updates += 1

    def validation_step(self, batch, _):
        time.sleep(0.15)
        self.log("val", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Watch(pl.Callback):
    began = seconds = 0.0

    def on_validation_start(self, *_):
        self.began = time.perf_counter()

    def on_validation_end(self, *_):
        self.seconds += time.perf_counter() - self.began


watch = Watch()
callbacks = [watch]
if "callback" in sys.argv:
    from computeflow.recorder import integrations

    callbacks.append(integrations.lightning("saved"))
model = Classifier()
trainer = pl.Trainer(
    max_epochs=2,
    accelerator="cpu",
    devices=devices,
    strategy="ddp" if devices > 1 else "auto",
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=callbacks,
)
trainer.fit(model, DataLoader(Numbers(640 * devices), 64), DataLoader(Numbers(640), 64))
tell(model.updates, v=watch.seconds)
