"""Whisper fine-tuned under Accelerate; features of the sound are made ahead, or while it trains."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.foreign_more_styles.common import Case, device, is_tiny, pick

CASES = (
    Case(name="whisper_ordinary"),
    Case(name="whisper_features-on-the-fly", cause="input-stall", wrong="mel"),
    Case(name="whisper_attention-maps", cause="unfused-attention", wrong="maps"),
    Case(name="whisper_clears-cache", cause="memory-pressure", wrong="clear"),
)


class Speech(Dataset):
    def __init__(self, frames, mels, on_the_fly):
        self.frames, self.mels, self.on_the_fly = frames, mels, on_the_fly
        self.waves = torch.randn(8, frames * 160)
        self.window = torch.hann_window(400)
        self.bank = torch.rand(mels, 201)
        self.ready = torch.stack([self.features(wave) for wave in self.waves])

    def features(self, wave):
        spectrum = torch.stft(wave, 400, 160, window=self.window, return_complex=True)
        mel = (self.bank @ spectrum[:, :-1].abs() ** 2).clamp(min=1e-10).log10()
        return (torch.maximum(mel, mel.max() - 8.0) + 4.0) / 4.0

    def __len__(self):
        return 200_000

    def __getitem__(self, i):
        features = self.features(self.waves[i % 8]) if self.on_the_fly else self.ready[i % 8]
        return {"input_features": features, "labels": torch.arange(pick(64, 8)) + 5}


def train(watch, fault):
    from accelerate import Accelerator
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    frames = pick(2000, 40)
    config = WhisperConfig(
        vocab_size=pick(16000, 100),
        d_model=pick(768, 32),
        encoder_layers=pick(6, 1),
        decoder_layers=pick(3, 1),
        encoder_attention_heads=pick(12, 2),
        decoder_attention_heads=pick(12, 2),
        encoder_ffn_dim=pick(3072, 64),
        decoder_ffn_dim=pick(3072, 64),
        num_mel_bins=pick(80, 8),
        max_source_positions=frames // 2,
        max_target_positions=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
    )
    accelerator = Accelerator(mixed_precision="bf16", cpu=is_tiny())
    with torch.device(device()):
        model = WhisperForConditionalGeneration(config)
    if "maps" in fault:  # somebody wanted to plot the attention once
        model.set_attn_implementation("eager")
        model.config.output_attentions = True
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    mel = "mel" in fault
    data = Speech(frames, config.num_mel_bins, mel)
    loader = DataLoader(
        data,
        batch_size=pick(32, 2),
        num_workers=0 if mel else pick(4, 1),
        pin_memory=not is_tiny(),
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    running = torch.zeros((), device=accelerator.device)
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        running += loss.detach()
        if "clear" in fault and not is_tiny():
            del loss
            torch.cuda.empty_cache()
        if step % 10 == 9:
            accelerator.print(f"step {step} loss {running.item() / 10:.3f}")
            running.zero_()
        watch.step()
