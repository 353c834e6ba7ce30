// Package schema is what ent generates its code from.
package schema

import (
	"encoding/json"

	"entgo.io/ent"
	"entgo.io/ent/dialect/entsql"
	"entgo.io/ent/schema"
	"entgo.io/ent/schema/field"
)

// Call is a call. No field has a default, so that callq's hold.
type Call struct{ ent.Schema }

func (Call) Fields() []ent.Field {
	return []ent.Field{
		field.Int64("id"),
		field.String("queue").Optional(),
		field.String("task").Optional(),
		field.String("key").Optional(),
		field.JSON("call_data", Data{}).Optional(),
		field.Int64("cost").Optional(),
		field.Int16("priority").Optional(),
		field.Time("run_at").Optional(),
		field.Time("expires_at").Optional(),
		field.String("unique_key").Optional(),
		field.Int32("max_attempts").Optional(),

		// To read only.
		field.String("status").Optional(),
		field.Int("attempts").Optional(),
	}
}

func (Call) Annotations() []schema.Annotation {
	return []schema.Annotation{entsql.Table("call_queue"), entsql.Skip()} // callq migrates its tables itself
}

// Data is the request of a call of the task http.
type Data struct {
	Method string `json:"method,omitempty"`
	URL    string `json:"url"`
	JSON   any    `json:"json,omitempty"`
}

// Attempt is one of its attempts. ent knows no primary key of two columns, but a view needs none.
type Attempt struct{ ent.View }

func (Attempt) Fields() []ent.Field {
	return []ent.Field{field.Int64("call_id"), field.Int("attempt"), field.JSON("result", json.RawMessage{}).Optional()}
}

func (Attempt) Annotations() []schema.Annotation {
	return []schema.Annotation{entsql.Table("call_attempts"), entsql.Skip()}
}
