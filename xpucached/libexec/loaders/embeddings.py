"""Models of sentence-transformers, which make vectors of texts."""

from __future__ import annotations

from ..run_order import Foreign, RunOrder, Subject, Unfit, torch_of
from .inputs import existing, texts
from .precision import context, in_precision


def sentence_transformers(job: RunOrder) -> Subject:
    """Load a folder; one use makes vectors of one text, or of one batch."""
    torch = torch_of(job)
    folder = str(existing(job.target, "the model"))
    try:
        import sentence_transformers as library  # noqa: PLC0415 - only here
    except ImportError as error:
        raise Unfit(f"this interpreter has no sentence-transformers: {error}") from error
    model: Foreign = library.SentenceTransformer(folder, device=job.device, local_files_only=True)
    if job.precision not in {"", "as-saved"}:
        model = in_precision(model, job, torch)
    lines = ["a house by the sea"] if job.inputs == "random" else texts(job)
    batches = [[line] for line in lines]
    if job.sizes:
        count, length = job.sizes[0]
        # Real text goes on and on until a row is full; the tokenizer cuts it there.
        setattr(model, "max_seq_length", length)  # noqa: B010 - of a foreign thing
        batches = [[" ".join(lines[row % len(lines) :] + lines * length) for row in range(count)]]
    if job.compile:
        model.compile()
    turn = iter(range(1 << 62))

    def encoded(batch: list[str]) -> object:
        with torch.no_grad(), context(job, torch):
            return model.encode(
                batch, batch_size=len(batch), convert_to_tensor=True, show_progress_bar=False, **job.options
            )

    return Subject(lambda: encoded(batches[next(turn) % len(batches)]), lambda: encoded(batches[0]))
