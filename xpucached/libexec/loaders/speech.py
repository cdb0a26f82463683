"""Speech to text: Whisper, and what else transformers loads in its place."""

from __future__ import annotations

import time
import wave
from pathlib import Path
from types import ModuleType
from typing import cast

from ..run_order import Foreign, RunOrder, Subject, Unfit, torch_of
from .inputs import existing, fitted, read_tensors, type_of
from .precision import context, in_precision
from .text import Streamer, dtype_name

_WIDTH = 2  # bytes of a sample


def whisper(job: RunOrder) -> Subject:
    """Load a folder; one use writes down one recording, or one batch of it."""
    torch = torch_of(job)
    folder = existing(job.target, "the model")
    import transformers  # noqa: PLC0415 - only here

    processor = transformers.AutoProcessor.from_pretrained(folder, local_files_only=True)
    as_saved = job.precision in {"", "as-saved"}
    arguments = {dtype_name(transformers): "auto" if as_saved else type_of(job, torch)}
    loaded = transformers.AutoModelForSpeechSeq2Seq.from_pretrained(folder, local_files_only=True, **arguments).eval()
    model: Foreign = loaded.to(job.device) if as_saved else in_precision(loaded, job, torch)
    if job.compile:
        setattr(model, "forward", torch.compile(model.forward))  # noqa: B010 - of a foreign thing
    rate = int(processor.feature_extractor.sampling_rate)
    recordings = [processor(rows, sampling_rate=rate, return_tensors="pt") for rows in _rows(job, torch, rate)]
    features = [one["input_features"].to(job.device).to(model.dtype) for one in recordings]
    special = set(processor.tokenizer.all_special_ids)
    turn = iter(range(1 << 62))

    def call() -> object:
        given = features[next(turn) % len(features)]
        streamer = Streamer(time.monotonic())
        with torch.no_grad(), context(job, torch):
            # Its streamer takes one text at a time.
            told = {"streamer": streamer} if int(given.shape[0]) == 1 else {}
            ids = model.generate(given, max_new_tokens=job.new_tokens, **told, **job.options)
        said = cast("list[str]", processor.tokenizer.batch_decode(ids, skip_special_tokens=True))
        streamer.token.fewest = min(
            sum(one not in special for one in row) if text.strip() else 0 for row, text in zip(ids.tolist(), said)
        )
        subject.token = streamer.token
        return ids

    subject = Subject(call)
    return subject


def _rows(job: RunOrder, torch: ModuleType, rate: int) -> list[list[object]]:
    """Return the recordings as batches of samples."""
    sizes = job.sizes[0] if job.sizes else []
    if job.inputs == "random":
        return [list(torch.randn(*(sizes or [1, rate])).numpy())]
    path = existing(job.inputs, "the file with the inputs")
    found = [_wave(path, torch, rate)] if path.suffix == ".wav" else read_tensors(path, torch)
    if not all(int(one.dim()) == 1 for one in found):
        raise Unfit(f"{path} holds no recordings: of each a row of samples is expected, {rate} for a second")
    if not sizes:
        return [[one.numpy()] for one in found]
    return [list(fitted(one.reshape(1, -1), sizes).numpy()) for one in found]


def _wave(path: Path, torch: ModuleType, rate: int) -> Foreign:
    with wave.open(str(path)) as recording:
        if (recording.getframerate(), recording.getnchannels(), recording.getsampwidth()) != (rate, 1, _WIDTH):
            raise Unfit(f"{path}: expected one channel of {rate} samples a second, of 16 bits")
        content = bytearray(recording.readframes(recording.getnframes()))
    samples: Foreign = torch.frombuffer(content, dtype=torch.int16).to(torch.float32) * (1 / 32768)
    return samples
