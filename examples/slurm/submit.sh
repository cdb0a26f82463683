#!/bin/bash
# Compile a bundle's recipes in parts, and export what came of them once all are done.
set -euo pipefail
cd "$(dirname "$0")"

export WARM=${1:?the directory with app.bundle, driver and release.key}
farm=$(sbatch --parsable --export=ALL farm.sbatch)
sbatch --dependency="afterok:${farm%%;*}" --export=ALL export.sbatch
