package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// as is errors.As with the argument order of a condition.
func as[T error](err error, target *T) bool { return errors.As(err, target) }

// String is the short form: "5m", "1h30m", "0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	// time.Duration writes 5m0s and 1h0m0s; the zero tails say nothing.
	if len(s) > 2 && s[len(s)-2:] == "0s" && s[len(s)-3] == 'm' {
		s = s[:len(s)-2]
	}
	if len(s) > 2 && s[len(s)-2:] == "0m" && s[len(s)-3] == 'h' {
		s = s[:len(s)-2]
	}
	return s
}

// MarshalJSON writes the string form.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON reads a string with units. A bare number is refused: nobody can
// tell whether 5 means seconds or milliseconds.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return errors.New(`a duration is a string with a unit, like "500ms", "30s" or "5m"`)
	}
	return d.parse(s)
}

// UnmarshalText reads the same form from YAML, flags and the environment.
func (d *Duration) UnmarshalText(text []byte) error { return d.parse(string(text)) }

// MarshalText writes the string form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d *Duration) parse(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf(`%q is not a duration; write a number with a unit, like "500ms", "30s" or "5m"`, clip(s))
	}
	*d = Duration(v)
	return nil
}
