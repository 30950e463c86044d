"""Lines as public trainers print them, with made numbers: the styles that `prove_logs` judges by.

Formats after lines quoted in the projects' issues and pull requests, whose numbers stand beside each
style. `SHAPING` styles were looked at while the learner was written; `JUDGING` styles were written
after it and scored once before anything was changed, `JUDGING_AGAIN` after the repairs that these led
to, and scored once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

START = datetime(2025, 3, 4, 10, 0, 0, tzinfo=UTC).timestamp()
PER_EPOCH = 120
EPOCHS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    number: int
    """From 1 over all epochs."""
    at: float
    seconds: float
    mean: float
    """Mean seconds of the steps so far."""
    loss: float

    @property
    def epoch(self) -> int:
        return (self.number - 1) // PER_EPOCH

    @property
    def inner(self) -> int:
        """From 0 in each epoch."""
        return (self.number - 1) % PER_EPOCH

    @property
    def lr(self) -> float:
        return 1e-3 * (1 - self.number / (PER_EPOCH * EPOCHS + 1))

    @property
    def left(self) -> float:
        return (PER_EPOCH * EPOCHS - self.number) * self.mean

    def stamp(self, form: str = "%Y-%m-%d %H:%M:%S") -> str:
        return datetime.fromtimestamp(self.at, UTC).strftime(form)

    def milli(self) -> str:
        return f"{self.stamp()},{int(self.at % 1 * 1e3):03d}"


def steps(seconds: float, seed: int) -> Iterator[Step]:
    """A run of known step times, some ten per cent apart."""
    rng, at, total = random.Random(seed), START, 0.0
    for number in range(1, PER_EPOCH * EPOCHS + 1):
        took = seconds * rng.uniform(0.9, 1.1)
        at, total = at + took, total + took
        loss = 2 + 6 * math.exp(-number / 80) + rng.uniform(-0.05, 0.05)
        yield Step(number=number, at=at, seconds=took, mean=total / number, loss=loss)


def hms(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    name: str
    source: str
    line: Callable[[Step], str]
    every: int = 1
    seconds: float = 0.5
    timed: bool = True
    """Whether the lines tell the step time at all."""
    lossy: bool = True
    """Whether the lines have a loss."""
    first: int = 1
    """The number of the first logged step."""
    epochs: bool = False
    """Whether a line is an epoch."""

    def lines(self) -> Iterator[tuple[Step, str]]:
        every = PER_EPOCH if self.epochs else self.every
        for step in steps(self.seconds, seed=len(self.name)):
            if step.number >= self.first and (step.number - self.first) % every == 0:
                yield step, self.line(step)


def _paddle_ocr(s: Step) -> str:
    return (
        f"[{s.stamp('%Y/%m/%d %H:%M:%S')}] root INFO: epoch: [{s.epoch + 1}/3], iter: {s.number}, lr: "
        f"{s.lr:.6f}, loss: {s.loss:.6f}, acc: 0.59, reader_cost: {s.mean / 5:.5f} s, batch_cost: "
        f"{s.mean:.5f} s, samples: 960, ips: {96 / s.mean:.5f}"
    )


def _paddle_seg(s: Step) -> str:
    return (
        f"{s.stamp()} [INFO]\t[TRAIN] epoch: 1, iter: {s.number}/{PER_EPOCH * EPOCHS}, loss: {s.loss:.4f}, "
        f"lr: {s.lr:.6f}, batch_cost: {s.mean:.4f}, reader_cost: {s.mean / 9:.5f}, ips: "
        f"{2 / s.mean:.4f} samples/sec | ETA {hms(s.left):0>8}"
    )


def _litgpt(s: Step) -> str:
    return (
        f"Ep {s.epoch + 1} | iter {s.number} | step {s.number // 4}: loss train (curr): {s.loss:.3f}, val "
        f"(prev val iter): None | iter time: {s.seconds * 1e3:.2f} ms"
    )


def _open_pcdet(s: Step) -> str:
    return (
        f"{s.milli()}   INFO  Train:    {s.epoch + 1}/3 ( 33%) [{s.inner:4d}/{PER_EPOCH} ( 15%)]  Loss: "
        f"{s.loss:.4g} ({s.loss + 0.1:.3g})  LR: {s.lr:.3e}  Acc_iter {s.number:<10d}  Data time: "
        f"0.02(0.02)  Forward time: {s.mean * 0.8:.2f}({s.mean * 0.8:.2f})  Batch time: "
        f"{s.seconds:.2f}({s.mean:.2f})"
    )


def _fairseq(s: Step) -> str:
    return (
        f"{s.stamp()} | INFO | train_inner | epoch 001: {s.number:6d} / 9000 loss={s.loss:.3f}, ppl=611.12, "
        f"wps={1613 / s.mean:.1f}, ups={1 / s.mean:.2f}, wpb=1613, bsz=80, num_updates={s.number}, "
        f"lr={s.lr:.3g}, gnorm=3.23, train_wall={s.mean * 10:.0f}, wall={s.at - START:.0f}"
    )


def _timm(s: Step) -> str:
    return (
        f"Train: {s.epoch} [{s.inner:>4d}/{PER_EPOCH} ({100 * s.inner // PER_EPOCH:>3d}%)]  Loss: "
        f"{s.loss:#.3g} ({s.loss + 0.1:#.3g})  Time: {s.seconds:.3f}s, {256 / s.seconds:>7.2f}/s  "
        f"({s.mean:.3f}s, {256 / s.mean:>7.2f}/s)  LR: {s.lr:.3e}  Data: 0.010 (0.012)"
    )


def _llm_c(s: Step) -> str:
    return (
        f"step {s.number:4d}/{PER_EPOCH * EPOCHS} | train loss {s.loss:.6f} | norm 1.3300 | lr {s.lr:.2e} | "
        f"{s.seconds * 1e3:.2f} ms | 48.9% bf16 MFU | {524288 / s.seconds:.0f} tok/s"
    )


def _swin(s: Step) -> str:
    return (
        f"[{s.stamp()} swin_v1_tiny_patch4_window7_224] (main.py 226): INFO Train: "
        f"[{s.epoch}/300][{s.inner}/{PER_EPOCH}]\teta {hms(s.left)} lr {s.lr:.6f}\ttime "
        f"{s.seconds:.4f} ({s.mean:.4f})\tloss {s.loss:.4f} ({s.loss + 0.2:.4f})\tgrad_norm 6.5613 (10.6225)"
        "\tmem 14764MB"
    )


def _torchvision(s: Step) -> str:
    left = (PER_EPOCH - s.inner) * s.mean
    return (
        f"Epoch: [{s.epoch}]  [{s.inner:4d}/{PER_EPOCH}]  eta: {hms(left)}  lr: {s.lr:.4f}  img/s: "
        f"{32 / s.seconds}  loss: {s.loss:.4f} ({s.loss + 0.2:.4f})  acc1: 0.0000 (0.2103)  time: "
        f"{s.seconds:.4f}  data: 0.0336  max mem: 3524"
    )


def _imagenet(s: Step) -> str:
    return (
        f"Epoch: [{s.epoch}][{s.inner:5d}/{PER_EPOCH}]\tTime {s.seconds:6.3f} ({s.mean:6.3f})\tData  0.002 "
        f"( 0.073)\tLoss {s.loss:.4e} ({s.loss + 0.2:.4e})\tAcc@1   0.00 (  0.08)\tAcc@5   6.25 (  0.55)"
    )


def _open_nmt(s: Step) -> str:
    return (
        f"[{s.milli()} INFO] Step {s.number}/200000; acc:  31.18; ppl: 57.53; xent: {s.loss:.2f}; lr: "
        f"{s.lr:.5f}; {2550 / s.mean:.0f}/{130 / s.mean:.0f} tok/s;   {s.at - START:.0f} sec"
    )


def _old_open_nmt(s: Step) -> str:
    return (
        f"Epoch  {s.epoch + 1}, {s.inner + 1:5d}/{PER_EPOCH}; acc:   3.99; ppl: 12792.57; xent: "
        f"{s.loss:6.2f}; {1719 / s.mean:.0f} src tok/s; {1758 / s.mean:.0f} tgt tok/s; "
        f"{s.at - START:6.0f} s elapsed"
    )


def _icefall(s: Step) -> str:
    return (
        f"{s.milli()} INFO [train.py:815] Epoch {s.epoch + 1}, batch {s.inner}, loss[loss={s.loss:.4f}, "
        f"simple_loss={2 * s.loss:.3f}, pruned_loss=9.094, over 5263.00 frames.], tot_loss[loss="
        f"{s.loss + 0.1:.4f}, simple_loss=1.726, pruned_loss=9.073, over {s.number * 5263:.2f} frames.], "
        f"batch size: {20 + s.number % 7}, lr: {s.lr:.2e}"
    )


def _detectron2(s: Step) -> str:
    return (
        f"[{s.stamp('%m/%d %H:%M:%S')} d2.utils.events]: eta: {hms(s.left)}  iter: {s.number - 1}  "
        f"total_loss: {s.loss:.4g}  loss_cls: {s.loss * 0.7:.3f}  loss_box_reg: {s.loss * 0.3:.3f}  time: "
        f"{s.mean:.4f}  data_time: 0.0334  lr: {s.lr:.6f}  max_mem: 3961M"
    )


def _mmdet(s: Step) -> str:
    return (
        f"{s.milli()} - mmdet - INFO - Epoch [{s.epoch + 1}][{s.inner + 1}/{PER_EPOCH}]\tlr: {s.lr:.5f}, eta: "
        f"{hms(s.left)}, time: {s.mean:.3f}, data_time: 0.031, memory: 6836, loss_rpn_cls: 0.0927, "
        f"loss_cls: 0.1861, acc: 94.0625, loss: {s.loss:.4f}"
    )


def _maskrcnn(s: Step) -> str:
    return (
        f"INFO: eta: {hms(s.left)}  iter: {s.number}  loss: {s.loss:.4f} ({s.loss + 0.1:.4f})  loss_mask: "
        f"0.4678 (0.5598)  time: {s.seconds:.4f} ({s.mean:.4f})  data: 0.0164 (0.0177)  forward: 0.2219 "
        f"(0.2200)  backward: 0.0810 (0.0850)  lr: {s.lr:.6f}  max mem: 3150"
    )


def _detectron(s: Step) -> str:
    return (
        f'json_stats: {{"accuracy_cls": 1.000000, "eta": "{hms(s.left)}", "iter": {s.number - 1}, "loss": '
        f'{s.loss:.6f}, "loss_bbox": 0.000645, "loss_cls": 0.001896, "lr": {s.lr:.6f}, "mb_qsize": 64, '
        f'"mem": 3084, "time": {s.mean:.6f}}}'
    )


def _olmo(s: Step) -> str:
    return (
        f"{s.stamp()}.{int(s.at % 1 * 1e3):03d} host-160750:0  olmo.train:908  INFO    "
        f"[step={s.number}/739328,epoch=0]\n    optim/total_grad_norm=231.7\n    "
        f"train/CrossEntropyLoss={s.loss:.4g}\n    train/Perplexity={math.exp(s.loss):,.0f}\n    "
        f"throughput/total_tokens={s.number * 1048576:,}\n    throughput/device/tokens_per_second="
        f"{1048576 / s.seconds:,.0f}\n    throughput/device/batches_per_second={1 / s.seconds:.4f}"
    )


def _pith(s: Step) -> str:
    return (
        f"{s.stamp()} | INFO | step {s.number:08d}/{360:08d} | step-time {s.seconds:.3f} sec | "
        f"cross-entropy-loss {s.loss:.4f} | load-balance-loss 0.001807 | learning-rate {s.lr:.6e} | "
        f"gradient-norm 20.2657 | tokens-per-second {2097152 / s.seconds:,.0f} | peak-gpu-memory 63.65 GB"
    )


def _modded(s: Step) -> str:
    return (
        f"step:{s.number}/20000 train_loss:{s.loss:.4f} train_time:{(s.at - START) * 1e3:.0f}ms "
        f"step_avg:{s.mean * 1e3:.2f}ms"
    )


def _modded_llama(s: Step) -> str:
    return f"{s.number} | loss {s.loss:.4f} | lr {s.lr:.6e} | {s.seconds * 1e3:.2f}ms"


def _nanochat(s: Step) -> str:
    return (
        f"step {s.number:05d}/{360:05d} ({s.number / 3.6:.2f}%) | loss: {s.loss:.6f} | grad_norm: 0.51234 | "
        f"lrm: 1.00 | dt: {s.seconds * 1e3:.2f}ms | tok/sec: {524288 / s.seconds:,.0f} | mfu: 48.13 | "
        f"total time: {(s.at - START) / 60:.2f}m"
    )


def _deit(s: Step) -> str:
    return (
        f'{{"train_lr": {s.lr}, "train_loss": {s.loss}, "test_loss": {s.loss + 0.1}, "test_acc1": 78.8, '
        f'"epoch": {s.epoch}, "n_parameters": 11590840}}'
    )


def _fastfold(s: Step) -> str:
    return (
        f"[{s.stamp('%m/%d/%y %H:%M:%S')}] INFO     colossalai - INFO: Training, Epoch: 0, Step: {s.number}, "
        f"Global_Step: {s.number}, Loss: distogram=4.159 fape=1.682 unscaled_loss={s.loss / 16:.3f} "
        f"loss={s.loss:.3f} drmsd_ca=26.113"
    )


def _estimator(s: Step) -> str:
    return (
        f"INFO:tensorflow:global_step/sec: {1 / s.mean:.5f}\n"
        f"INFO:tensorflow:loss = {s.loss:.6f}, step = {s.number} ({s.mean * 10:.3f} sec)"
    )


def _espnet(s: Step) -> str:
    return (
        f"[gpu7] {s.milli()} (trainer:737) INFO: {s.epoch + 1}epoch:train:{s.inner - 8}-{s.inner + 1}batch: "
        f"iter_time=1.2e-04, forward_time={s.mean * 0.4:.3f}, loss={s.loss:.3f}, backward_time="
        f"{s.mean * 0.5:.3f}, optim_step_time=0.018, optim0_lr0={s.lr:.3e}, train_time={s.mean:.3f}"
    )


def _yolo(s: Step) -> str:
    bar = "█" * (10 * s.inner // PER_EPOCH)
    passed = int(s.at - START - s.epoch * PER_EPOCH * s.mean)
    header = "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
    return (header if s.number == 1 else "") + (
        f"{s.epoch + 1:>9}/3      3.2G     {s.loss:.3f}     {s.loss / 2:.3f}      1.042         13        "
        f"640: {100 * s.inner // PER_EPOCH:3d}%|{bar:<10}| {s.inner + 1}/{PER_EPOCH} [{passed // 60:02d}:"
        f"{passed % 60:02d}<00:09,  {1 / s.mean:.2f}it/s]"
    )


def _composer(s: Step) -> str:
    return (
        f"[batch={s.number}/4800]:\n\t Train time/epoch: {s.epoch}\n\t Train time/batch: {s.number - 1}\n"
        f"\t Train time/sample: {(s.number - 1) * 64}\n\t Train trainer/device_train_microbatch_size: 16\n"
        f"\t Train loss/train/total: {s.loss:.4f}\n\t Train throughput/batches_per_sec: {1 / s.mean:.4f}\n"
        f"\t Train throughput/device/tokens_per_sec: {131072 / s.mean:.4f}\n\t Train time/remaining_estimate:"
        f" {s.left / 3600:.4f}"
    )


def _spacy(s: Step) -> str:
    header = (
        "E    #       LOSS TOK2VEC  LOSS NER  ENTS_F  SCORE\n"
        "---  ------  ------------  --------  ------  ------\n"
    )
    row = f"{s.epoch:3d} {s.number:7d} {s.loss * 3:13.2f} {s.loss:9.2f}   12.41    0.12"
    return (header if s.number == 1 else "") + row


def _clu(s: Step) -> str:
    stamp = s.stamp("%m%d %H:%M:%S") + f".{int(s.at % 1 * 1e6):06d}"
    return (
        f"I{stamp} 140110937163584 logging_writer.py:48] [{s.number}] steps_per_second={1 / s.mean:.6f}, "
        f"train_accuracy=0.001, train_learning_rate={s.lr:.6f}, train_loss={s.loss:.6f}"
    )


def _colossal(s: Step) -> str:
    bar = "█" * (10 * s.inner // PER_EPOCH)
    passed = int(s.at - START - s.epoch * PER_EPOCH * s.mean)
    return (
        f"Epoch [{s.epoch + 1}/3]: {100 * s.inner // PER_EPOCH:3d}%|{bar:<10}| {s.inner + 1}/{PER_EPOCH} "
        f"[{passed // 60:02d}:{passed % 60:02d}<00:09,  {1 / s.mean:.2f}it/s, loss={s.loss:.3f}]"
    )


SHAPING = (
    Style(
        name="PaddleOCR", source="PaddlePaddle/PaddleOCR#2083", line=_paddle_ocr, every=10, first=10
    ),
    Style(
        name="PaddleSeg", source="PaddlePaddle/PaddleSeg#928", line=_paddle_seg, every=20, first=20
    ),
    Style(name="LitGPT", source="Lightning-AI/litgpt#1055", line=_litgpt),
    Style(name="OpenPCDet", source="open-mmlab/OpenPCDet#1229", line=_open_pcdet, every=10),
    Style(
        name="fairseq", source="facebookresearch/fairseq#2338", line=_fairseq, every=10, first=10
    ),
    Style(name="timm", source="timm train.py as documented", line=_timm),
    Style(name="llm.c", source="llm.c train_gpt2.cu as documented", line=_llm_c),
)
JUDGING = (
    Style(name="Swin", source="microsoft/Swin-Transformer#183", line=_swin, every=10),
    Style(name="torchvision references", source="fangwei123456/Spike-Element-Wise-ResNet#10", line=_torchvision),
    Style(name="pytorch/examples imagenet", source="yjh0410/pytorch-imagenet#1", line=_imagenet, every=10,
          timed=False),
    Style(name="OpenNMT-py", source="OpenNMT/OpenNMT-py#1362", line=_open_nmt, every=10, first=10, lossy=False),
    Style(name="OpenNMT-py 2018", source="OpenNMT/OpenNMT-py#709", line=_old_open_nmt, every=10, first=10,
          lossy=False),
    Style(name="icefall", source="k2-fsa/icefall#399", line=_icefall, every=10),
    Style(name="detectron2", source="facebookresearch/detectron2#195", line=_detectron2, every=20, first=20),
    Style(name="mmdetection 2", source="open-mmlab/mmdetection#2672", line=_mmdet, every=10, first=10),
    Style(name="maskrcnn-benchmark", source="facebookresearch/maskrcnn-benchmark#976", line=_maskrcnn, every=20,
          first=20, timed=False),
    Style(name="Detectron", source="facebookresearch/Detectron#610", line=_detectron, every=20, timed=False),
    Style(name="OLMo", source="allenai/OLMo#692", line=_olmo),
    Style(name="pith-train", source="mlc-ai/pith-train#7", line=_pith),
    Style(name="modded-nanogpt", source="openai/parameter-golf#839", line=_modded, every=10, first=10),
    Style(name="modded-llama2", source="nwyin/modded-llama2#10", line=_modded_llama, every=10, first=10, timed=False),
    Style(name="nanochat", source="karpathy/nanochat#242", line=_nanochat),
    Style(name="DeiT log.txt", source="yuhuan-wu/P2T#13", line=_deit, epochs=True, timed=False),
    Style(name="FastFold", source="hpcaitech/FastFold#138", line=_fastfold),
)  # fmt: skip
JUDGING_AGAIN = (
    Style(name="TensorFlow Estimator", source="lines as its tutorials show", line=_estimator, every=10, first=10,
          timed=False),
    Style(name="ESPnet 2", source="lines as its recipes show", line=_espnet, every=10, first=10),
    Style(name="ultralytics", source="table as its quickstart shows", line=_yolo, lossy=False),
    Style(name="Composer", source="block as LLM Foundry's README shows", line=_composer),
    Style(name="spaCy", source="table as its quickstart shows", line=_spacy, every=10, timed=False, lossy=False),
    Style(name="CLU (Flax examples)", source="lines as Flax's examples show", line=_clu, every=10, first=10),
    Style(name="Colossal-AI", source="bar as its examples show", line=_colossal),
)  # fmt: skip
