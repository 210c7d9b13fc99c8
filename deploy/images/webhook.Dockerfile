# SPDX-License-Identifier: Apache-2.0
# The webhook and the controller. After `make wheel`, from the root of the tree:
#   docker build -f deploy/images/webhook.Dockerfile .
ARG BASE=python:3.13-slim
# An image with the Python of BASE, and pip, where BASE has none.
ARG BUILDER=${BASE}

FROM ${BUILDER} AS build
COPY deploy/images/assemble.py deploy/images/webhook.lock /context/
RUN ["python3", "/context/assemble.py", "libraries", "/context/webhook.lock", "/libraries"]
COPY build/wheel/*.whl /context/
RUN ["python3", "/context/assemble.py", "program", "webhook", "/context", "/program"]

FROM ${BASE}
COPY --from=build /libraries/ /
COPY --from=build /program/ /
ENV PYTHONPATH=/opt/aliquot/site PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["aliquot-webhook"]
