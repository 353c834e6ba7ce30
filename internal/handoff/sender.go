package handoff

import (
	"context"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
)

// Timeout bounds each exchange of a Sender with Redis.
const Timeout = 2 * time.Second

// Sender hands attempts over for a dispatcher, and remembers whether Redis is away. What it does not get through stays
// open in Postgres, and recovery sends it again. It is not safe for concurrent use.
type Sender struct {
	log    *slog.Logger
	redis  redis.UniversalClient
	db     DB
	broker *Broker // nil until it is needed for the first time
	away   bool
}

// NewSender makes a Sender. It connects when it is first used.
func NewSender(client redis.UniversalClient, db DB, log *slog.Logger) *Sender {
	return &Sender{log: log, redis: client, db: db}
}

// Use has the Sender read the database's identity from db.
func (s *Sender) Use(db DB) { s.db = db }

// Deliver sends what a claim opened. A failure is left to recovery: it is only logged.
func (s *Sender) Deliver(ctx context.Context, messages []Message) {
	if err := s.Send(ctx, messages); err != nil {
		s.away = true
		s.log.WarnContext(ctx, "hand-over waits for Redis", "err", err)
	}
}

// Send sends messages.
func (s *Sender) Send(ctx context.Context, messages []Message) error {
	if len(messages) == 0 {
		return nil
	}
	return s.ask(ctx, func(ctx context.Context, b *Broker) error { return b.Send(ctx, messages...) })
}

// Away reports whether Redis was away when it was last needed.
func (s *Sender) Away() bool { return s.away }

// Back asks whether Redis answers again.
func (s *Sender) Back(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	if err := s.redis.Ping(ctx).Err(); err != nil {
		return false
	}
	s.away = false
	s.log.InfoContext(ctx, "Redis is back")
	return true
}

// Pending returns the ids of the messages of a pool that still wait in Redis.
func (s *Sender) Pending(ctx context.Context, pool string) (ids map[string]bool, err error) {
	err = s.ask(ctx, func(ctx context.Context, b *Broker) error { ids, err = b.Pending(ctx, pool); return err })
	return ids, err
}

// Tidy removes what Asynq keeps of these pools without need, and all that it has of others.
func (s *Sender) Tidy(ctx context.Context, pools []string) (n int, err error) {
	err = s.ask(ctx, func(ctx context.Context, b *Broker) error { n, err = b.Tidy(ctx, pools); return err })
	return n, err
}

func (s *Sender) ask(ctx context.Context, do func(context.Context, *Broker) error) error {
	if s.broker == nil {
		broker, err := Open(ctx, s.redis, s.db)
		if err != nil {
			return err
		}
		s.broker = broker
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	return do(ctx, s.broker)
}
