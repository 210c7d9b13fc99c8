# SPDX-License-Identifier: Apache-2.0
# The node agent, with the library for tenants. After `make wheel`, from the root of the tree:
#   docker build -f deploy/images/agent.Dockerfile .
ARG BASE=python:3.13-slim
# An image with the Python of BASE, and pip, where BASE has none.
ARG BUILDER=${BASE}

FROM ${BUILDER} AS build
COPY deploy/images/assemble.py deploy/images/agent.lock /context/
RUN ["python3", "/context/assemble.py", "libraries", "/context/agent.lock", "/libraries"]
COPY build/wheel/*.whl /context/
RUN ["python3", "/context/assemble.py", "program", "agent", "/context", "/program"]

FROM ${BASE}
COPY --from=build /libraries/ /
COPY --from=build /program/ /
ENV PYTHONPATH=/opt/aliquot/site PYTHONUNBUFFERED=1
# As root: it writes what containers mount, and looks at other processes. The chart leaves it four capabilities.
ENTRYPOINT ["aliquot-agent"]
