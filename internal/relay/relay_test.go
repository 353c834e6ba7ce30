package relay_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/callq/callq/internal/redistest"
	"github.com/callq/callq/internal/relay"
	"github.com/google/go-cmp/cmp"
)

func TestParcelsArriveInOrder(t *testing.T) {
	t.Parallel()
	ctx, client := t.Context(), redistest.New(t)
	sent := []relay.Parcel{
		{Pool: "a", ID: relay.ID("e", 7, 0, 0), Attempts: []relay.Ref{{CallID: 1, Attempt: 1}, {CallID: 1 << 62, Attempt: 1<<31 - 1}}},
		{Pool: "b", ID: relay.ID("e", 7, 1, 0), Attempts: []relay.Ref{{CallID: 3, Attempt: 1}}},
		{Pool: "a", ID: relay.ID("e", 7, 2, 0), Attempts: []relay.Ref{{CallID: 4, Attempt: 2}}},
	}
	if err := relay.Send(ctx, client, sent...); err != nil {
		t.Fatal(err)
	}
	waiting, err := relay.Waiting(ctx, client, "a")
	if ids := slices.Sorted(maps.Keys(waiting)); err != nil || !slices.Equal(ids, []string{"e-7-0-0", "e-7-2-0"}) {
		t.Errorf("waiting %v (%v)", ids, err)
	}
	if ttl := client.TTL(ctx, relay.Key("a")).Val(); ttl <= 0 {
		t.Errorf("a list that nobody takes from stays for ever: %s", ttl)
	}
	for _, want := range []relay.Parcel{sent[0], sent[2]} {
		got, ok, err := relay.Take(ctx, client, "a")
		if diff := cmp.Diff(want, got); !ok || err != nil || diff != "" {
			t.Errorf("took %v, %v (-want +got):\n%s", ok, err, diff)
		}
	}
	if waiting, err = relay.Waiting(ctx, client, "a"); err != nil || len(waiting) > 0 {
		t.Errorf("waiting after all were taken: %v (%v)", waiting, err)
	}
	if _, ok, err := relay.Take(ctx, client, "a"); ok || err != nil {
		t.Errorf("took from an empty pool: %v, %v", ok, err)
	}
}

// A parcel that comes while a worker stops waiting is not lost.
func TestTakeOutlivesItsContext(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := relay.Send(t.Context(), client, relay.Parcel{Pool: "a", ID: "x"}); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := relay.Take(ctx, client, "a"); !ok || err != nil || got.ID != "x" {
		t.Errorf("took %v, %v, %v", got, ok, err)
	}
}

func TestUnreadable(t *testing.T) {
	t.Parallel()
	ctx, client := t.Context(), redistest.New(t)
	for _, data := range []string{"", "{", `{"attempts":7}`, `{"attempts":[["1",1]]}`} {
		client.RPush(ctx, relay.Key("a"), data)
		if _, ok, err := relay.Take(ctx, client, "a"); ok || !errors.Is(err, relay.ErrUnreadable) {
			t.Errorf("%q: %v, %v", data, ok, err)
		}
	}
}
