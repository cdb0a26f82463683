"""Door: an example or two of each command, for its `--help` and the manual."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final = {
    "status": ("xpucachectl status", "xpucachectl status --check  # one line and an exit status, for monitoring"),
    "ls": ("xpucachectl ls --model llama --arch B580", "xpucachectl ls --sort size --limit 10"),
    "show": ("xpucachectl show 3f2a 91bc",),
    "stores": ("xpucachectl stores --sort size",),
    "df": ("xpucachectl df",),
    "devices": ("xpucachectl devices",),
    "completion": ('eval "$(xpucachectl completion bash)"',),
    "model add": (
        "xpucachectl model add llama -- python3 app.py --once",
        "xpucachectl model add chat --ready-url http://127.0.0.1:8000/health --requests r.jsonl -- vllm serve qwen",
        "xpucachectl model add net --loader python --python venv/bin/python --target app:warm --device xpu",
    ),
    "model list": ("xpucachectl model list 'llama*' --state cold",),
    "model show": ("xpucachectl model show llama",),
    "model history": ("xpucachectl model history llama",),
    "model remove": ("xpucachectl model remove llama resnet",),
    "prewarm": ("xpucachectl prewarm llama", "xpucachectl prewarm --stale --timeout 10m"),
    "evict": ("xpucachectl evict --dry-run", "xpucachectl evict --reason superseded-driver"),
    "trash list": ("xpucachectl trash list --since 1d",),
    "trash restore": ("xpucachectl trash restore 3f2a", "xpucachectl trash restore --all"),
    "trash empty": ("xpucachectl trash empty -y",),
    "verify": ("xpucachectl verify --fix",),
    "doctor": ("xpucachectl doctor --fix",),
    "replay": (
        "xpucachectl replay --dry-run",
        "xpucachectl replay --device A770 --driver-root /opt/driver --into /image/sycl --driver-cache /image/neo",
    ),
    "scan": ("xpucachectl scan --full",),
    "jobs": ("xpucachectl jobs --state running", "xpucachectl jobs --cancel prewarm-3"),
    "driver-changed": ("xpucachectl driver-changed --wait --timeout 20m",),
    "events": ("xpucachectl events --follow", "xpucachectl events 'model-*' --since 1d"),
    "runs": ("xpucachectl runs llama --state failed",),
    "seen": ("xpucachectl seen llama",),
    "why": ("xpucachectl why llama",),
    "run": ("xpucachectl run llama -- python3 app.py",),
    "trace": ("xpucachectl trace -- python3 app.py", "xpucachectl trace --json -o told.json -- python3 app.py"),
    "env": ('eval "$(xpucachectl env llama)"', "xpucachectl env llama --systemd"),
    "fingerprint": ("xpucachectl fingerprint", "xpucachectl fingerprint --nfd"),
    "bundle push": ("xpucachectl bundle push app.bundle registry.example.com/caches/app:v1",),
    "bundle pull": ("xpucachectl bundle pull registry.example.com/caches/app:v1 app.bundle",),
    "fleet diff": ("xpucachectl fleet diff hosts/ --bundle app.bundle",),
    "setup": ("xpucachectl setup --user --dry-run",),
    "config show": ("xpucachectl config show --json",),
    "version": ("xpucachectl version",),
}
"""By the command; what stands behind two blanks and a # says what it is for."""


def epilog(verb: str) -> str | None:
    """Return what stands at the end of a command's help; None if it has no example."""
    lines = EXAMPLES.get(verb)
    if not lines:
        return None
    return "\n".join(("examples:" if len(lines) > 1 else "example:", *(f"  {line}" for line in lines)))
