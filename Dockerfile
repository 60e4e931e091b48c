# One image for Ray's head and its workers. Built on python:slim and not on rayproject/ray: there, a Python environment of
# its own comes along, whose versions are not those that requirements.lock was tested with.
FROM python:3.11-slim-bookworm

# For NVIDIA GPUs: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# Into the system's Python, since KubeRay starts `ray` in a login shell, which forgets a PATH set here.
# What the service needs, at the versions of the lock; the lock also has what tests need, which stays out.
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
COPY simulator simulator
COPY loadtests loadtests
RUN pip install --no-deps --no-build-isolation . && rm -rf build *.egg-info

RUN useradd --uid 1000 --create-home ray
USER 1000:1000
WORKDIR /home/ray
CMD ["sojourn", "--help"]
