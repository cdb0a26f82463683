"""Small models for tests, made where there is a torch.  Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

TEXT = """The quick brown fox jumps over the lazy dog and runs into the dark forest behind the old mill.
A cache that nobody warms is a cache that everybody waits for, said the miller to the fox.
"""


def make_language_model(place: Path) -> None:
    """Make a GPT-2 of two layers with random weights, and a tokenizer of whole words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = sorted(set(TEXT.replace(".", " .").replace(",", " ,").split()))
    vocabulary = {word: number for number, word in enumerate(["<end>", "<unknown>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unknown>")
    fast.save_pretrained(place)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(vocabulary),
        n_positions=128,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    GPT2LMHeadModel(config).save_pretrained(place)


def make_mute_model(place: Path) -> None:
    """Make one that ends every text at once, as a model does that is given what it never saw."""
    import torch
    from transformers import AutoTokenizer, GPT2LMHeadModel

    speaking = place.parent / "speaking"
    model = GPT2LMHeadModel.from_pretrained(speaking)
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.fill_(1.0)
        model.lm_head.weight.copy_(torch.zeros_like(model.lm_head.weight))
        model.lm_head.weight[0].fill_(1.0)
    model.save_pretrained(place)
    AutoTokenizer.from_pretrained(speaking).save_pretrained(place)


def make_programs(place: Path) -> None:
    """Make a small picture classifier as a TorchScript file and as an exported program, and its inputs."""
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 10),
    ).eval()
    picture = torch.linspace(0, 1, 3 * 24 * 94).reshape(1, 3, 24, 94)
    torch.save([picture], place / "picture.pt")
    torch.jit.save(torch.jit.trace(module, picture), str(place / "classifier.ts"))
    torch.export.save(torch.export.export(module, (picture,)), place / "classifier.pt2")


def make_pipeline(place: Path) -> None:
    """Make a pipeline that draws pictures of eight by eight points."""
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    network = UNet2DModel(
        sample_size=8,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )
    DDPMPipeline(network, DDPMScheduler(num_train_timesteps=4)).save_pretrained(place)


def make_listener(place: Path) -> None:
    """Make a Whisper of one layer with random weights, and a recording of half a second for it."""
    import torch
    from transformers import (
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperProcessor,
        WhisperTokenizer,
    )

    special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    vocabulary = {word: number for number, word in enumerate([*special, *"abcdefghijklmnopqrstuvwxyz"])}
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[])
    # Thirty seconds are what it always reads; of so few frames here.
    extractor = WhisperFeatureExtractor(feature_size=8, chunk_length=1, n_fft=64, hop_length=160)
    WhisperProcessor(extractor, tokenizer).save_pretrained(place)
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=len(vocabulary),
        num_mel_bins=8,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=50,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=1,
        suppress_tokens=[],
        begin_suppress_tokens=[0],
    )
    WhisperForConditionalGeneration(config).save_pretrained(place)
    torch.save(torch.sin(torch.arange(8000) / 6), place.parent / "tone.pt")


def make(place: Path) -> None:
    """Make all of them."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "text.txt").write_text(TEXT, encoding="utf-8")
    make_language_model(place / "speaking")
    make_mute_model(place / "mute")
    make_programs(place)
    make_pipeline(place / "pipeline")
    make_listener(place / "listener")
