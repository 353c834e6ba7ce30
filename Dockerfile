# callq, a static binary and nothing beside it but the certificates of the APIs it calls. It runs as nobody in
# particular, writes no file, and is told all it needs by its environment or /etc/callq/config.yaml.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
# With .git, so that `callq version` says which commit this is.
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -tags timetzdata -ldflags="-s -w" -o /out/callq ./cmd/callq

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/callq /usr/local/bin/callq
USER 65532:65532
# All interfaces of the container: publish the port only where it should be reached. The pages ask for no password, so
# they are off until you say CALLQ_HTTP_PAGES=true, where nobody else reaches them.
ENV CALLQ_HTTP_LISTEN=:7460 CALLQ_HTTP_PAGES=false
EXPOSE 7460
STOPSIGNAL SIGTERM
# Whether it lives; an orchestrator that restarts what is unhealthy must not do so because Postgres is away.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
	CMD ["/usr/local/bin/callq", "health", "--timeout", "4s"]
ENTRYPOINT ["/usr/local/bin/callq"]
CMD ["serve"]
