package config

import _ "embed"

// Example is the commented settings file that `sluice config example` prints.
//
//go:embed example.yaml
var Example string
