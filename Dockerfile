# Two images from one build: the gateway (the last stage, the default) and, for
# trying it without a GPU, `--target upstreams`.
FROM golang:1.26-alpine AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/sluice ./cmd/sluice \
 && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o /out/upstreams ./deploy/upstreams \
 && mkdir -p /out/data /out/tmp && chmod 1777 /out/tmp

# One static program for the health checks: these images have no shell.
FROM busybox:stable-musl AS tools

FROM scratch AS base
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=tools /bin/busybox /bin/wget
COPY --from=build /out/tmp /tmp
USER 65532:65532

FROM base AS upstreams
COPY --from=build /out/upstreams /upstreams
ENTRYPOINT ["/upstreams"]

FROM base AS gateway
ARG VERSION=dev
LABEL org.opencontainers.image.title="sluice" \
      org.opencontainers.image.description="OpenAI-compatible gateway that makes every change of model a controlled experiment" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/sluice /sluice
# The directory's owner goes over to a volume that is mounted empty.
COPY --from=build --chown=65532:65532 /out/data /data
# A container's loopback cannot be reached, so the data plane listens on all
# addresses; it then wants auth.data to be set. Admin stays on loopback unless
# it is given a token.
ENV SLUICE_SERVER_LISTEN=0.0.0.0:8080 \
    SLUICE_STORAGE_URL=sqlite:/data/sluice.db \
    SLUICE_DATA_DIR=/data
WORKDIR /data
VOLUME /data
EXPOSE 8080 8081 9091
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
  CMD ["/bin/wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8080/healthz"]
ENTRYPOINT ["/sluice"]
CMD ["serve"]
