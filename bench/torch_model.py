"""How long a compiled language model takes to start, cold and warm, and the proof: a model file at work.

Usage: ``python bench/torch_model.py PYTHON [--device cuda] [--layers 12] [--output FILE]``

``PYTHON`` is an interpreter with torch and transformers.  It makes a Llama with random weights (nothing is downloaded),
registers it with a daemon of its own, prewarms it twice over (cold, and the proof in a fresh process), and prints
a table and the daemon's answer as JSON.  Triton's and Inductor's caches lie below the run's own directory, and the
proof is that the second process adds no file to them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

TEXT: Final = """The quick brown fox jumps over the lazy dog and runs into the dark forest behind the old mill.
A cache that nobody warms is a cache that everybody waits for, said the miller to the fox.
"""

MAKE: Final = """
import sys
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
place, layers = sys.argv[1], int(sys.argv[2])
words = sorted(set(open(place + "/text.txt").read().replace(".", " .").replace(",", " ,").split()))
vocabulary = {word: number for number, word in enumerate(["<end>", "<unknown>", *words])}
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unknown>", pad_token="<end>")
fast.save_pretrained(place + "/model")
torch.manual_seed(0)
config = LlamaConfig(vocab_size=len(vocabulary), hidden_size=1024, intermediate_size=2816, num_hidden_layers=layers,
                     num_attention_heads=16, num_key_value_heads=16, max_position_embeddings=512, bos_token_id=0,
                     eos_token_id=None, pad_token_id=0)  # random weights must not end a text by chance
model = LlamaForCausalLM(config)
model.save_pretrained(place + "/model")
device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
print(torch.__version__, "on", device, "-", round(sum(p.numel() for p in model.parameters()) / 1e6), "M parameters")
"""


def main() -> int:
    """Make the model, warm it, print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", default="12")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="xpu-"))
    try:
        (home / "text.txt").write_text(TEXT, encoding="utf-8")
        interpreter = shutil.which(given.python) or given.python
        made = subprocess.run([interpreter, "-c", MAKE, home, given.layers], check=True, capture_output=True, text=True)
        print(made.stdout.strip())
        answer = warm(home, interpreter, given.device)
    finally:
        shutil.rmtree(home)
    print(json.dumps(answer, indent=1))
    if given.output:
        given.output.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    return 0


def warm(home: Path, interpreter: str, device: str) -> dict[str, object]:
    """Let a daemon warm the model; give its run and how the model stands."""
    (home / "r").mkdir(mode=0o700)
    (home / "models.d").mkdir()
    precision = "float32" if device == "cpu" else "bfloat16"
    (home / "models.d/llama.toml").write_text(
        f"""
        loader = "transformers"
        python = "{interpreter}"
        target = "{home}/model"
        inputs = "{home}/text.txt"
        device = "{device}"
        require_device = true
        compile = true
        precisions = ["{precision}"]
        shapes = ["1x16", "4x32"]
        new_tokens = 32
        min_output_tokens = 2
        caches = ["{home}/inductor", "{home}/triton"]
        timeout = "15m"
        [variables]
        TORCHINDUCTOR_CACHE_DIR = "{home}/inductor"
        TRITON_CACHE_DIR = "{home}/triton"
        """,
        encoding="utf-8",
    )
    config = home / "xpucached.toml"
    config.write_text(
        f"""
        [paths]
        state = '{home}/state'
        cache = '{home}/cache'
        models = '{home}/models.d'
        [stores]
        found = false
        [schedule]
        prewarm = false
        """,
        encoding="utf-8",
    )
    variables = {**os.environ, "XDG_RUNTIME_DIR": str(home / "r"), "HOME": str(home)}
    with (home / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "xpucached", "--user", "--config", config], env=variables, stderr=log
        )

    def ctl(*words: str) -> str:
        command = [sys.executable, "-m", "xpucached.cli", "--user", *words]
        done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=False)
        return done.stdout

    try:
        while not (home / "r/xpucached/xpucached.sock").exists() and daemon.poll() is None:
            time.sleep(0.1)
        began = time.monotonic()
        print(ctl("prewarm", "llama"), f"{time.monotonic() - began:.0f} s in all", sep="")
        print(ctl("model", "show", "llama"))
        again = time.monotonic()
        print(ctl("prewarm", "llama"), f"{time.monotonic() - again:.1f} s", sep="")
        runs, shown = ctl("--json", "runs", "llama"), ctl("--json", "model", "show", "llama")
        return {"runs": json.loads(runs), "model": json.loads(shown)}
    finally:
        daemon.terminate()
        daemon.wait()
        print((home / "log").read_text(encoding="utf-8")[-3000:], file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
