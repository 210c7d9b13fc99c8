# SPDX-License-Identifier: Apache-2.0
# A GPU and its driver for nodes that have none: for trials, never part of another image. After `make sim`,
# from the root of the tree:
#   docker build -f deploy/images/simulated-gpu.Dockerfile .
ARG BASE=python:3.13-slim

FROM ${BASE}
COPY build/sim/libcuda.so.1 build/sim/libnvidia-ml.so.1 build/sim/nvidia-cuda-mps-control build/sim/aliquot-sim \
     build/sim/aliquot-smi /opt/aliquot-sim/
COPY deploy/images/simulated-gpu.sh /opt/aliquot-sim/node
ENTRYPOINT ["/opt/aliquot-sim/node"]
