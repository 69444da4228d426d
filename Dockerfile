# The broker, and nothing it does not need at run time: everything is built in the first stage and copied as one folder.
FROM python:3.11-slim-bookworm AS build
# python-qpid-proton comes as source, and protocol/native is C: a compiler. Without pkg-config and libssl-dev it is built without
# its own TLS, which the broker does not use: asyncio does TLS, and proton gets the plain bytes.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/partibus
ENV PATH=/opt/partibus/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
# The dependencies first: they change seldom, and this layer is kept until they do.
COPY pyproject.toml ./
RUN python -c "import tomllib; print('\n'.join(tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies']))" > dependencies.txt \
    && pip install --requirement dependencies.txt
COPY setup.py MANIFEST.in README.md LICENSE ./
COPY protocol protocol
COPY storage storage
COPY broker broker
RUN pip install --no-deps . && pip uninstall --yes pip setuptools && python -m compileall -q /opt/partibus/lib

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="Partibus" \
      org.opencontainers.image.description="A partitioned service bus: an AMQP 1.0 broker that behaves like Azure Service Bus partitioned entities" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin partibus \
    && install --directory --owner=partibus --group=partibus --mode=0750 /data \
    && install --directory /etc/partibus
COPY --from=build /opt/partibus /opt/partibus
COPY docker/config.json docker/health_probe.py /etc/partibus/
ENV PATH=/opt/partibus/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PARTIBUS_HOST=0.0.0.0 \
    PARTIBUS_DATA_DIR=/data \
    PARTIBUS_CONFIG=/etc/partibus/config.json
USER partibus
VOLUME /data
EXPOSE 5672 5671 5300
STOPSIGNAL SIGTERM
# No --start-interval: Buildah 1.28, Podman 4.3 and Docker before 25 do not know it, and fail.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "-I", "-S", "/etc/partibus/health_probe.py"]
ENTRYPOINT ["partibus"]
CMD ["serve"]
