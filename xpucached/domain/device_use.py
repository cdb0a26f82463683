"""What a run used of devices: by kernels in caches, and by what the kernel counted of GPUs.  Pure."""

from __future__ import annotations

from msgspec import Struct


class GraphicsUse(Struct, frozen=True):
    """What the kernel counted for a run's processes on one graphics device."""

    device: str  #: its PCI address
    driver: str  #: the kernel's, such as i915 or xe
    seconds: float  #: for which its engines worked, added up over them; of xe about, from their cycles
    memory: int  #: bytes at most, of its own memory, or of all where it has none


class GpuUse(Struct, frozen=True):
    """What is known of the part that one of several GPUs had in a variant's passes."""

    name: str
    architecture: str
    address: str = ""  #: of PCI; empty: only its driver tells of it
    entries: int = 0  #: that were created or used, for GPUs of its sort
    alike: int = 1  #: GPUs of its sort, itself included
    seconds: float = 0.0  #: as `GraphicsUse`, of all passes
    used: bool | None = None  #: None: not known; False: it was not seen to work, and others with the same counters were

    @property
    def sentence(self) -> str:
        """What is known of it, in words."""
        where = f"{self.name} at {self.address}" if self.address else self.name
        shared = f", as for all {self.alike} of its sort" if self.alike > 1 else ""
        kernels = f"{self.entries} kernels for it{shared}" if self.entries else "no kernels for it"
        worked = f"its engines worked {self.seconds:.1f} s, " if self.seconds else ""
        state = {True: "used", False: "not seen to work", None: "unknown whether it was used"}[self.used]
        return f"{where}: {state} ({worked}{kernels})"


class DeviceUse(Struct, frozen=True):
    """Whether a GPU was used: by the kernels in caches, and by what the kernel counted."""

    gpu_entries: int = 0  #: that were created or used, for GPUs of this host
    cpu_entries: int = 0  #: for its processor
    unplaced_entries: int = 0  #: for devices that are not here, or of which nobody knows what they are
    graphics: tuple[GraphicsUse, ...] = ()  #: devices that its processes had open; empty: none was seen, or no counters
    worked: bool = False  #: whether engines worked for it, also where it is not known for how long
    gpus: tuple[GpuUse, ...] = ()  #: each, where its programs meet several

    @property
    def only_cpu(self) -> bool:
        """Whether all that was seen was for the processor, and nothing for a GPU."""
        busy = self.worked or any(one.seconds > 0 for one in self.graphics)
        return bool(self.cpu_entries) and not (self.gpu_entries or self.unplaced_entries or busy)

    @property
    def sentence(self) -> str:
        """What is known of it, in words."""
        parts = [f"{self.gpu_entries} kernels for a GPU were compiled or used"] if self.gpu_entries else []
        parts += [
            f"the engines of {one.device} ({one.driver}) worked {one.seconds:.1f} s for it,"
            f" with {one.memory / (1 << 20):.0f} MiB at most"
            for one in self.graphics
            if one.seconds > 0 or one.memory
        ]
        if self.worked and not any(one.seconds > 0 for one in self.graphics):
            parts.append("the engines of a GPU worked for it, for a time that is not known")
        if self.only_cpu:
            return "ran on the CPU: no kernel for a GPU was used"
        if self.unplaced_entries:
            parts.append(f"unknown: {self.unplaced_entries} are for what may be a GPU or not, or is not here")
        return "; ".join(parts) or "unknown: neither kernels for a device nor work of a GPU's engines were seen"
