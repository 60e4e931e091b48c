# One image for Ray's head and its workers. It is built on python:slim, not on rayproject/ray, whose own Python
# environment has other versions than requirements.lock, with which Sojourn is tested.
FROM python:3.11-slim-bookworm

# For NVIDIA GPUs: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# Install into the system's Python, because KubeRay starts `ray` in a login shell, which resets a PATH set here.
# Install only what the service needs, at the versions of the lock; the lock also lists the tests' packages.
WORKDIR /opt/sojourn
COPY requirements.lock pyproject.toml ./
RUN grep '^setuptools==' requirements.lock > /tmp/needed \
 && python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" >> /tmp/needed \
 && pip install --only-binary=:all: --no-deps --index-url "$TORCH_INDEX" "$(grep '^torch==' requirements.lock)" \
 && pip install --only-binary=:all: --constraint requirements.lock --requirement /tmp/needed \
 && rm /tmp/needed

COPY README.md LICENSE ./
COPY sojourn sojourn
COPY policy policy
COPY autoscaler autoscaler
COPY deployments deployments
COPY pipelines pipelines
COPY simulator simulator
COPY loadtests loadtests
COPY modelstore modelstore
RUN pip install --no-deps --no-build-isolation . && rm -rf build *.egg-info

RUN useradd --uid 1000 --create-home ray
USER 1000:1000
WORKDIR /home/ray
CMD ["sojourn", "--help"]
