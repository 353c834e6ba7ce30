// A producer with bun on lib/pq.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"runtime/debug"
	"time"

	"github.com/lib/pq"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
)

// Call is what a producer may set: of what is zero, callq's default holds.
type Call struct {
	bun.BaseModel `bun:"table:call_queue"`
	ID            int64     `bun:",pk,autoincrement"`
	Queue         string    `bun:",nullzero"`
	Task          string    `bun:",nullzero"`
	Key           string    `bun:",nullzero"`
	CallData      Data      `bun:"type:jsonb"`
	Cost          int64     `bun:",nullzero"`
	Priority      *int16    // 0 is a priority
	RunAt         time.Time `bun:",nullzero"`
	ExpiresAt     time.Time `bun:",nullzero"`
	UniqueKey     string    `bun:",nullzero"`
	MaxAttempts   int32     `bun:",nullzero"`
}

// Data is the request of a call of the task http.
type Data struct {
	Method string `json:"method,omitempty"`
	URL    string `json:"url"`
	JSON   any    `json:"json,omitempty"`
}

// Made is a call to read, with what became of it.
type Made struct {
	bun.BaseModel `bun:"table:call_queue"`
	Call          `bun:",extend"`
	Status        string
	Attempts      int
	Results       []*Attempt `bun:"rel:has-many,join:id=call_id"`
}

// Attempt is one of its attempts.
type Attempt struct {
	bun.BaseModel `bun:"table:call_attempts"`
	CallID        int64 `bun:",pk"`
	Attempt       int   `bun:",pk"`
	Outcome       string
	Result        json.RawMessage `bun:"type:jsonb"`
}

var api = os.Getenv("API_URL")

func call(path, uniqueKey string) *Call {
	return &Call{Queue: "payments", Key: "acct_42", UniqueKey: uniqueKey, CallData: Data{
		Method: "POST", URL: api + path, JSON: map[string]int{"order": 4711},
	}}
}

func main() {
	pool, err := sql.Open("postgres", os.Getenv("DATABASE_URL")+"?sslmode=disable")
	if err != nil {
		log.Fatal(err)
	}
	said, err := step(context.Background(), bun.NewDB(pool, pgdialect.New()), os.Args[1:])
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		log.Fatal(err)
	}
}

func step(ctx context.Context, db *bun.DB, args []string) (any, error) {
	switch args[0] {
	case "create":
		c := &Call{Queue: "payments", Key: "acct_42", UniqueKey: "order-4711", CallData: Data{
			Method: "POST", URL: api + "/create", JSON: map[string]int{"order": 4711},
		}}
		_, err := db.NewInsert().Model(c).Exec(ctx)
		return map[string]any{"id": c.ID}, err

	case "bulk":
		calls := make([]*Call, 1000)
		for i := range calls {
			calls[i] = call(fmt.Sprintf("/bulk/%d", i), "")
		}
		_, err := db.NewInsert().Model(&calls).Exec(ctx)
		return map[string]any{"ids": ids(calls)}, err

	case "transaction":
		insertWith := func(path string, and error) error {
			return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
				_, err := tx.NewInsert().Model(call(path, "")).Exec(ctx)
				return errors.Join(err, and)
			})
		}
		if err := insertWith("/committed", nil); err != nil {
			return nil, err
		}
		errNotPaid := errors.New("not paid")
		if err := insertWith("/rolled-back", errNotPaid); !errors.Is(err, errNotPaid) {
			return nil, err
		}
		return struct{}{}, nil

	case "duplicates":
		calls := []*Call{call("/duplicates/1", "dup-1"), call("/duplicates/2", "dup-1"), call("/duplicates/3", "dup-2")}
		_, err := db.NewInsert().Model(&calls).Ignore().Returning("NULL").Exec(ctx) // with ids it would shorten calls
		return struct{}{}, err

	case "upsert":
		calls := []*Call{call("/upsert/1", "up-1"), call("/upsert/2", "up-1")}
		err := db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
			for _, c := range calls {
				_, err := tx.NewInsert().Model(c).Ignore().Returning("NULL").Exec(ctx)
				if err != nil {
					return err
				}
				err = tx.NewSelect().Model(c).Column("id").Where("queue = ? AND unique_key = ?", c.Queue, c.UniqueKey).Scan(ctx)
				if err != nil {
					return err
				}
			}
			return nil
		})
		return map[string]any{"ids": ids(calls)}, err

	case "read":
		var made Made
		err := db.NewSelect().Model(&made).Where("id = ?", args[1]).Relation("Results", func(q *bun.SelectQuery) *bun.SelectQuery {
			return q.Order("attempt DESC")
		}).Scan(ctx)
		if err != nil {
			return nil, err
		}
		return map[string]any{"status": made.Status, "result": made.Results[0].Result}, nil

	case "stale":
		var made Made
		if err := db.NewSelect().Model(&made).Where("id = ?", args[1]).Scan(ctx); err != nil {
			return nil, err
		}
		fmt.Printf("{\"loaded\": %d}\n", made.ID)
		fmt.Scanln()
		made.Priority = new(int16(9))
		_, err := db.NewUpdate().Model(&made).WherePK().Exec(ctx)
		return map[string]any{"sqlstate": sqlstate(err)}, nil

	case "diff":
		return map[string]any{"skip": "it compares nothing with the database"}, nil

	case "version":
		info, _ := debug.ReadBuildInfo()
		for _, m := range info.Deps {
			if m.Path == "github.com/uptrace/bun" {
				return map[string]any{"version": m.Version}, nil
			}
		}
	}
	return nil, fmt.Errorf("no such step: %v", args)
}

func ids(calls []*Call) (ids []int64) {
	for _, c := range calls {
		ids = append(ids, c.ID)
	}
	return ids
}

func sqlstate(err error) string {
	var pg *pq.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &pg):
		return string(pg.Code)
	}
	return err.Error()
}
