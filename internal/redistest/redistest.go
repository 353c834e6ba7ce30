// Package redistest gives a test a Redis of its own, so that tests run side by side and may flush
// theirs.
package redistest

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/local"
)

// New returns a client of a fresh, real Redis; both go when t ends.
func New(t testing.TB) *redis.Client {
	t.Helper()
	server, err := local.StartRedis(t.Context(), local.Redis{Install: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Errorf("stop the test's Redis: %v", err)
		}
	})
	options, err := redis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}
