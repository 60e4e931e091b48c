# One image for Ray's head and its workers. It is built on python:slim, not on rayproject/ray, whose own Python
# environment has other versions than requirements.lock, with which Sojourn is tested.
# For a release, pin it: --build-arg BASE=python:3.11-slim-bookworm@sha256:… (`docker buildx imagetools inspect` shows the
# digest).
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}

# For NVIDIA GPUs: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# Install into the system's Python, because KubeRay starts `ray` in a login shell, which resets a PATH set here.
# Install what serving and load tests need, at the versions of the lock and with the hashes of requirements.hashes; torch
# comes from its own index, which has a build for each kind of device, and takes CUDA's packages from there.
WORKDIR /opt/sojourn
COPY requirements.lock requirements.hashes ./
RUN pip install --only-binary=:all: --no-deps --require-hashes --requirement requirements.hashes \
 && pip install --only-binary=:all: --constraint requirements.lock --index-url "$TORCH_INDEX" "$(grep '^torch==' requirements.lock)" \
 && pip check

COPY pyproject.toml README.md LICENSE ./
COPY sojourn sojourn
COPY policy policy
COPY autoscaler autoscaler
COPY deployments deployments
COPY loadtests loadtests
RUN pip install --no-deps --no-build-isolation . && rm -rf build *.egg-info

RUN useradd --uid 1000 --create-home ray
USER 1000:1000
WORKDIR /home/ray
CMD ["sojourn", "--help"]
