package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A variable of callq's that nothing reads is named, with what may be meant, and never with its value.
func TestUnread(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, `
limits: {stripe: {rate: "${CALLQ_RATE_OF_OURS:-5/s}"}}
http_task: {secrets: {KEY: {env: CALLQ_SECRET_KEY, hosts: [api.example.com]}}}
`, map[string]string{
		"CALLQ_WORKER_CONCURENCY": "5", "CALLQ_WORKER_CONCURRENCY": "6", "CALLQ_LIMITS_STRIPE_SLACK": "1s", "CALLQ_LIMITS_STRIPES_SLACK": "1s",
		"CALLQ_ELSE": "hunter2", "CALLQ_RATE_OF_OURS": "6/s", "CALLQ_SECRET_KEY": "k", "CALLQ_CONFIG": "config.yaml", "CALLQ_LOG_FORMATS": "",
		"CALLQ_REDIS_URL_FILES": "x", "CALLQ_TEST_HOLD": "1", "CALLQUEUE_WORKER": "1",
	}, nil)
	want := []string{
		"CALLQ_ELSE is set, and nothing reads it",
		"CALLQ_LIMITS_STRIPES_SLACK is set, and nothing reads it: CALLQ_LIMITS_STRIPE_SLACK is meant, perhaps",
		"CALLQ_REDIS_URL_FILES is set, and nothing reads it: CALLQ_REDIS_URL_FILE is meant, perhaps",
		"CALLQ_WORKER_CONCURENCY is set, and nothing reads it: CALLQ_WORKER_CONCURRENCY is meant, perhaps",
	}
	if diff := cmp.Diff(want, c.Unread()); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}
