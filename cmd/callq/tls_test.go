package main

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/internal/redistest"
)

// certificates writes, as files, a server's certificate for 127.0.0.1 that is its own authority, and another authority, with their keys.
func certificates(t *testing.T) (cert, key, other, otherKey string) {
	t.Helper()
	pair := httptest.NewTLSServer(nil)
	defer pair.Close()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	private, err := x509.MarshalPKCS8PrivateKey(pair.TLS.Certificates[0].PrivateKey)
	must(t, err)
	public, stranger, err := ed25519.GenerateKey(nil)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, stranger)
	must(t, err)
	othersPrivate, err := x509.MarshalPKCS8PrivateKey(stranger)
	must(t, err)
	return write("cert", "CERTIFICATE", pair.Certificate().Raw), write("key", "PRIVATE KEY", private),
		write("other", "CERTIFICATE", der), write("otherkey", "PRIVATE KEY", othersPrivate)
}

// answers is a server with one answer to whatever it is told.
func answers(t *testing.T, words string) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the test
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = conn.Read(make([]byte, 1024))
				_, _ = conn.Write([]byte(words))
				_, _ = io.Copy(io.Discard, conn) // until the client goes
			}()
		}
	}()
	return listener.Addr().String()
}

// encrypt restarts a Postgres with TLS, by a certificate and a key in its folder.
func encrypt(t *testing.T, postgres *local.PostgresServer, files map[string][]byte) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), postgres.URL("postgres"))
	must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	var dir string
	must(t, conn.QueryRow(t.Context(), "SHOW data_directory").Scan(&dir))
	for name, content := range files {
		writeAs(t, ownerOf(t, dir), filepath.Join(dir, name), string(content))
	}
	if _, err := conn.Exec(t.Context(), "ALTER SYSTEM SET ssl = on"); err != nil {
		t.Fatal(err)
	}
	must(t, postgres.Restart(t.Context()))
}

// Both servers with TLS, under an authority of their own: the whole way of a call, and what is said where
// TLS fails.
func TestTLS(t *testing.T) {
	t.Parallel()
	cert, key, other, _ := certificates(t)
	read := func(path string) []byte {
		text, err := os.ReadFile(path)
		must(t, err)
		return text
	}
	pgPort, redisPort := redistest.FreePort(t), redistest.FreePort(t)
	postgres, err := local.StartPostgres(t.Context(), local.Postgres{
		Settings: map[string]string{"port": pgPort, "listen_addresses": "127.0.0.1", "fsync": "off"},
	})
	must(t, err)
	t.Cleanup(func() { _ = postgres.Stop() })
	encrypt(t, postgres, map[string][]byte{"server.crt": read(cert), "server.key": read(key)})
	_, client := redistest.Start(t, map[string]string{
		"tls-port": redisPort, "tls-cert-file": cert, "tls-key-file": key, "tls-ca-cert-file": cert, "tls-auth-clients": "no",
		"bind": "127.0.0.1",
	}, redis.Options{})
	must(t, client.ConfigSet(t.Context(), "requirepass", "hunter2").Err())
	url := func(host, more string) string {
		return fmt.Sprintf("postgres://postgres:hunter2@%s:%s/postgres?%s", host, pgPort, more)
	}
	secure := "sslmode=verify-full&sslrootcert=" + cert
	good := world{t: t, postgres: url("127.0.0.1", secure), redis: "rediss://:hunter2@127.0.0.1:" + redisPort, config: atAnyPort}
	good.do("migrate", "up")
	with := func(change func(*world)) world { w := good; change(&w); return w }
	trusting := func(w world, authority string, args ...string) *process { // a process of its own reads it anew
		p := w.command(args...)
		p.cmd.Env = append(p.cmd.Env, "SSL_CERT_FILE="+authority, "SSL_CERT_DIR=/no/such/folder")
		return p.start()
	}
	for _, c := range []struct {
		name  string
		in    world
		args  string
		code  int
		words []string
	}{
		{"Postgres, another authority", with(func(w *world) { w.postgres = url("127.0.0.1", "sslmode=verify-full&sslrootcert="+other) }), "status", 5, []string{"certificate", "DATABASE_URL"}},
		{"Postgres, another name", with(func(w *world) { w.postgres = url("localhost", secure) }), "migrate status", 5, []string{"certificate", "localhost"}},
		{"Postgres, verify-ca, another name", with(func(w *world) { w.postgres = url("localhost", "sslmode=verify-ca&sslrootcert="+cert) }), "status", 0, nil},
		{"Postgres, no such file", with(func(w *world) { w.postgres = url("127.0.0.1", "sslmode=verify-full&sslrootcert=/no/such.pem") }), "status", 2, []string{"unable to read CA file"}},
		{"Postgres without TLS", with(func(w *world) { w.postgres = "postgres://u:hunter2@" + answers(t, "N") + "/d?sslmode=require" }), "status", 5, []string{"refused TLS"}},
		{"Redis without TLS", with(func(w *world) { w.redis = "rediss://:hunter2@" + answers(t, "-ERR\r\n") }), "dispatch --once", 5, []string{"not look like a TLS"}},
		{"Redis, another authority", good, "dispatch --once", 5, []string{"Redis cannot be reached", "certificate"}},
		{"Redis, another name", with(func(w *world) { w.redis = "rediss://:hunter2@localhost:" + redisPort }), "dispatch --once", 5, []string{"certificate", "localhost"}},
		{"Redis, wrong password", with(func(w *world) { w.redis = "rediss://:ter2hun@127.0.0.1:" + redisPort }), "dispatch --once", 5, []string{"refused the connection"}},
		{"all well", good, "dispatch --once", 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.in.t = t
			wait, authority := map[int]string{exitUnreachable: "3s"}[c.code], cert
			if c.name == "Redis, another authority" {
				authority = other
			}
			p := trusting(c.in, authority, append(strings.Fields(c.args), "--timeout", cmp.Or(wait, "20s"))...)
			p.exits(c.code)
			has(t, p.log.String(), c.words...)
			if said := p.log.String(); strings.Contains(said, "hunter2") || strings.Contains(said, "ter2hun") {
				t.Errorf("it shows a password: %s", said)
			}
		})
	}

	api := answering(t)
	p := trusting(good, cert, "serve").ready()
	good.done(good.call(api))
	p.send(syscall.SIGTERM)
	p.exits(exitDone)
	good.do("verify")
}
