#!/bin/sh
# Updates the packages of the GPU driver, and returns when all users' models are warm for it.
#     driver-update.sh intel-opencl-icd libze-intel-gpu1
# Exit status: 0 all are warm; 1 not all; 2 one failed; 69 no daemon answers; 100 apt's own.
set -eu
apt-get install --yes -- "$@"
exec xpucachectl driver-changed --wait --timeout "${TIMEOUT:-30m}"
