#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes this node look as if a GPU and its driver were installed: simulated driver libraries and tools, the
# GPUs' state, and the CDI spec that hands them to containers. GPUS is a list of PROFILE[:COUNT].
set -eu
: "${NODE_NAME:?}" "${GPUS:?}"
driver=${NVIDIA_PROC:-/proc/driver/nvidia}
if [ -e "$driver" ]; then
    echo "this node has NVIDIA's driver ($driver): simulated GPUs never go beside real ones" >&2
    exit 1
fi
lib=/var/lib/aliquot-sim/lib
for name in libcuda.so.1 libnvidia-ml.so.1 aliquot-smi nvidia-cuda-mps-control; do
    # Renamed into place: a running process keeps the file that it has mapped.
    cp "/opt/aliquot-sim/$name" "$lib/.$name.new"
    mv "$lib/.$name.new" "$lib/$name"
done
set --
for gpu in $GPUS; do
    set -- "$@" --gpu "$gpu"
done
/opt/aliquot-sim/aliquot-sim init --node "$NODE_NAME" "$@"
/opt/aliquot-sim/aliquot-sim cdi --lib-dir "$lib" >/var/run/cdi/.sim.aliquot.dev-gpu.json
mv /var/run/cdi/.sim.aliquot.dev-gpu.json /var/run/cdi/sim.aliquot.dev-gpu.json
exec sleep infinity
