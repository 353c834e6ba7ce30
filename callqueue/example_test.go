package callqueue_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
)

func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer pool.Close()

	client, err := callqueue.New(pool)
	if err != nil {
		panic(err)
	}
	id, err := client.Insert(ctx, callqueue.Call{
		Queue: "payments",
		Key:   "acct_42",
		Data:  map[string]any{"method": "POST", "url": "https://api.example.com/charges", "json": map[string]int{"amount": 100}},
	})
	if err != nil {
		panic(err)
	}
	call, err := client.Get(ctx, id)
	if err != nil {
		panic(err)
	}
	fmt.Println(call.Status, call.Status.Final())
}

// The order and the call that charges it are there together, or neither is.
func ExampleClient_InsertTx() {
	ctx := context.Background()
	var pool *pgxpool.Pool
	var client *callqueue.Client

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (number) VALUES (4711)`); err != nil {
			return err
		}
		id, err := client.InsertTx(ctx, tx, callqueue.Call{
			Queue:     "payments",
			Data:      map[string]int{"order": 4711},
			UniqueKey: "order-4711",
			Priority:  new(0),
			ExpiresAt: time.Now().Add(24 * time.Hour),
		})
		if errors.Is(err, callqueue.ErrDuplicate) {
			fmt.Println("asked for already, and not yet made, by call", id)
			return nil
		}
		return err
	})
	if err != nil {
		panic(err)
	}
}
