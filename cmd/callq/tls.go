package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/config"
)

// trust lets options believe the authority in redis.ca_file, and no other.
func trust(cfg *config.Config, options *redis.Options) error {
	file, origin := cfg.Redis.CAFile, cfg.Origin("redis.ca_file")
	if file == "" {
		return nil
	}
	if options.TLSConfig == nil {
		return usagef("redis.ca_file (from %s) is for TLS, and the Redis URL is not rediss://", origin)
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return usagef("read redis.ca_file (from %s): %w", origin, err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(pem) {
		return usagef("redis.ca_file (from %s): %s holds no certificate in PEM", origin, file)
	}
	options.TLSConfig.RootCAs = authorities
	return nil
}

// isTLS says that a server was reached and TLS with it failed, which waiting does not mend.
func isTLS(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok { // it answers, and not in TLS
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok { // as sslmode=verify-ca has it
		return true
	}
	return err != nil && strings.Contains(err.Error(), "server refused TLS connection") // pgx has no other sign
}

func tlsSettings(server string) string {
	if server == "Postgres" {
		return "sslmode and sslrootcert (PGSSLMODE, PGSSLROOTCERT), and that the certificate names the URL's host"
	}
	return "redis.ca_file, rediss:// or redis://, and that the certificate names the URL's host"
}
