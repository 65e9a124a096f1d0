# The OpenAI-compatible server on CPUs.
#
#     docker build -t taslak .
#     docker run -p 8000:8000 -v taslak:/var/lib/taslak -e TASLAK_API_KEY=KEY taslak [NAME=]MODEL... [OPTIONS]
#
# On Linux pip takes PyTorch's CUDA build, several gigabytes of it. TORCH_INDEX names another index for PyTorch
# alone, for instance that of its CPU builds, which PyTorch's own instructions tell.

ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && python -m venv /opt/taslak
ENV PATH=/opt/taslak/bin:$PATH
ARG TORCH_INDEX=""
# hadolint ignore=DL3013
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch>=2.8,<2.14"
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY native native
COPY src src
# without the kernels it would be slow, which nobody sees at once: then the build fails
# hadolint ignore=DL3013
RUN pip install --no-cache-dir ".[serve]" \
    && python -c "from taslak.native import BUILT; assert BUILT, 'the native kernels were not built'"

FROM python:${PYTHON}-slim-bookworm
COPY --from=build /opt/taslak /opt/taslak
RUN useradd --system --uid 10001 --create-home taslak \
    && install --directory --owner 10001 /var/lib/taslak
ENV PATH=/opt/taslak/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TASLAK_HOME=/var/lib/taslak
USER 10001
WORKDIR /home/taslak
# models, packed weights, what steps cost here, statistics
VOLUME /var/lib/taslak
EXPOSE 8000
# the first start fetches and packs the model
HEALTHCHECK --start-period=10m --interval=30s --timeout=5s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["taslak", "serve", "--host", "0.0.0.0"]
CMD ["smollm2-135m-instruct"]
