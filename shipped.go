// Package callq holds what is shipped with the program: its documented configuration, and the schema of that. Producers use
// package callqueue, workers package tasks.
package callq

import _ "embed" // for ConfigYAML and ConfigSchema

// ConfigYAML is config.yaml: every key at its default, explained. Its first line tells editors where ConfigSchema is.
//
//go:embed config.yaml
var ConfigYAML string

// ConfigSchema is its JSON schema.
//
//go:embed docs/config.schema.json
var ConfigSchema string
