"""Make the table of Intel GPUs that the package ships.

Usage: ``python tools/make_archs.py SOURCE.csv``.  The source has the columns ``pci_device_id``, ``product``,
``ocloc_name``, ``ip_version``, ``steppings`` (blank separated) and ``marketing_name``; other columns are dropped.  The
result goes to ``xpucached/data/intel-gpu-archs.csv``, sorted by PCI id.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

COLUMNS = ("pci_id", "product", "architecture", "versions", "name")
TARGET = Path(__file__).resolve().parent.parent / "xpucached" / "data" / "intel-gpu-archs.csv"


def main(source: Path) -> None:
    """Read the source and write the table."""
    with source.open(encoding="utf-8", newline="") as stream:
        rows = [
            (
                f"0x{int(row['pci_device_id'], 16):04x}",
                row["product"],
                row["ocloc_name"],
                " ".join(dict.fromkeys((row["ip_version"], *row["steppings"].split()))),
                row["marketing_name"],
            )
            for row in csv.DictReader(stream)
        ]
    TARGET.parent.mkdir(exist_ok=True)
    with TARGET.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(sorted(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
